# NCCL for ranks that are processes with a GPU each, where CUDA is built in: its header alone. Sets TERA_HAVE_NCCL and
# TERA_NCCL_INCLUDE_DIR. Nothing is linked: the library is opened when such ranks meet.
set(TERA_HAVE_NCCL OFF)
if(NOT TERA_HAVE_CUDA)
  return()
endif()
find_path(TERA_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
if(NOT TERA_NCCL_INCLUDE_DIR)
  message(STATUS "NCCL: left out (nccl.h was not found); ranks on GPUs are threads of one process")
  return()
endif()
tera_header_version(${TERA_NCCL_INCLUDE_DIR}/nccl.h NCCL_ MAJOR MINOR PATCH tera_nccl_version)
if(tera_nccl_version VERSION_LESS 2.18)  # the first that splits communicators
  message(STATUS "NCCL: left out (its header is of ${tera_nccl_version}; 2.18 or later is needed)")
  return()
endif()
set(TERA_HAVE_NCCL ON)
message(STATUS "NCCL: header of ${tera_nccl_version}")
