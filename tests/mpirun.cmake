# How tests start ranks as processes: sets mpirun (a list) and mpirun_line. There are more ranks than cores, so all must
# yield. Both are empty where there is no MPI, or no mpirun.
set(mpirun "")
set(mpirun_line "")
if(NOT TERA_HAVE_MPI)
  return()
endif()
if(NOT MPIEXEC_EXECUTABLE)
  message(STATUS "MPI: no mpirun, so ranks as processes are not tested")
  return()
endif()
set(mpirun ${MPIEXEC_EXECUTABLE})
execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE mpirun_version ERROR_QUIET)
if(mpirun_version MATCHES "Open MPI|OpenRTE")
  # Without single copy: reading another process's memory is forbidden in many containers.
  list(APPEND mpirun --oversubscribe --allow-run-as-root --bind-to none --mca mpi_yield_when_idle 1
                     --mca btl_vader_single_copy_mechanism none --mca btl_base_warn_component_unused 0)
endif()
list(JOIN mpirun " " mpirun_line)
