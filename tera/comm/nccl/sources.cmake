# Sources that need the headers of CUDA and NCCL; relative to this folder.
set(tera_nccl_sources channel.cpp make_nccl.cpp marks.cpp nccl_api.cpp nccl_comm.cpp nccl_world.cpp)
