#pragma once
#include "tera/base/utf8.h"  // where it lives
