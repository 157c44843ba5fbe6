#include "tera/train/sample_token.h"
