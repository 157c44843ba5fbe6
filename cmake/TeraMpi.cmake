# TERA_MPI decides about MPI: AUTO takes a library that is found, ON insists, OFF leaves it out. Sets TERA_HAVE_MPI.
set(TERA_MPI AUTO CACHE STRING "build with MPI: AUTO, ON or OFF")
set_property(CACHE TERA_MPI PROPERTY STRINGS AUTO ON OFF)
set(TERA_HAVE_MPI OFF)

if(NOT TERA_MPI)
  message(STATUS "MPI: left out (TERA_MPI=${TERA_MPI})")
  return()
endif()
set(MPI_CXX_SKIP_MPICXX ON)  # the C interface is all we call
find_package(MPI QUIET COMPONENTS CXX)
if(MPI_CXX_FOUND)
  set(TERA_HAVE_MPI ON)
  message(STATUS "MPI: ${MPI_CXX_LIBRARY_VERSION_STRING} standard ${MPI_CXX_VERSION}")
elseif(TERA_MPI STREQUAL "AUTO")
  message(STATUS "MPI: left out (no library was found)")
else()
  message(FATAL_ERROR "TERA_MPI is ${TERA_MPI}, but no MPI library was found (Debian: libopenmpi-dev); "
                      "TERA_MPI=OFF builds without")
endif()
