#include "tera/base/log.h"
