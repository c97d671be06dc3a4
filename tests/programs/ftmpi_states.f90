! SPDX-License-Identifier: Apache-2.0
!
! What survivors, and a new rank, read of modes, states and failures by FT-MPI's rules, in Fortran. Somebody kills rank 1
! of five when rank 0 is ready.
!
!   ftmpi_states_f08 FTMPI_COMM_MODE FTMPI_MSG_MODE

! By mpi_f08 and by the older module.
module older
  use mpi
  use mpi_ext
  implicit none
contains
  integer function state_of(comm) result(state)
    integer, intent(in) :: comm
    integer :: code
    integer, allocatable :: failed(:)
    double precision, allocatable :: times(:)
    call resurgo_ft_get_attr(comm, FTMPI_COMM_STATE, state, code)
    if (code /= MPI_SUCCESS) state = -1
    call resurgo_ft_get_attr(comm, FTMPI_FAILED_PROCS, failed)
    call resurgo_ft_get_attr(comm, FTMPI_FAILED_AT, times)
    if (size(failed) /= size(times)) state = -1
    call resurgo_ft_set_attr(comm, FTMPI_COLL_MODE, FTMPI_COLL_MODE_LOOSE, code)
    if (code /= MPI_SUCCESS) state = -1
  end function state_of
end module older

program ftmpi_states
  use mpi_f08
  use mpi_f08_ext
  use older, only: state_of
  use, intrinsic :: iso_c_binding, only: c_int64_t, c_ptr, c_null_ptr
  implicit none
  interface
    integer(c_int64_t) function seconds(place) bind(C, name="time")
      import c_int64_t, c_ptr
      type(c_ptr), value :: place
    end function seconds
  end interface
  type(MPI_Comm) :: new
  integer :: rank, size, mode, messages, code, class, value, total, most
  logical :: is_new

  call MPI_Init(code)
  is_new = code == MPI_INIT_RESTARTED_NODE
  mode = argument(1)
  messages = argument(2)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, size)
  call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)
  call check(size == 5 .and. (is_new .or. code == MPI_SUCCESS), 'beginning')
  if (is_new) then
    print '(a,i0)', 'new ', rank
  else
    call before()
    if (rank == 0) print '(a)', 'ready'
    flush (6)
    call MPI_Recv(value, 1, MPI_INTEGER, merge(0, 1, rank == 1), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE, code)
    call MPI_Error_class(code, class)
    call check(class == MPI_ERR_OTHER, 'class')
    call broken()
    new = FT_MPI_CHECK_RECOVER
    call MPI_Comm_dup(MPI_COMM_WORLD, new, code)
    call check(code == MPI_SUCCESS .and. new == MPI_COMM_WORLD, 'rebuilding')
  end if
  call rebuilt()
  print '(a,i0)', 'right ', rank
  call MPI_Finalize()

contains

  subroutine before()
    integer, allocatable :: failed(:), states(:)
    call check(attribute(FTMPI_COMM_MODE) == mode .and. attribute(FTMPI_MSG_MODE) == messages, 'modes')
    call check(attribute(FTMPI_COMM_STATE) == FT_OK .and. attribute(FTMPI_NUM_FAILED_PROCS) == 0, 'whole')
    call resurgo_ft_get_attr(MPI_COMM_WORLD, FTMPI_FAILED_PROCS, failed)
    call resurgo_ft_get_attr(MPI_COMM_WORLD, FTMPI_PROC_STATES, states)
    call check(ubound(failed, 1) == 0 .and. all(states == [0, 0, 0, 0, 0] + FT_PROC_OK), 'nobody has failed')
    call resurgo_ft_set_attr(MPI_COMM_WORLD, FTMPI_COMM_MODE, 99, code)
    call check(code /= MPI_SUCCESS, 'no such mode')
    call resurgo_ft_set_attr(MPI_COMM_WORLD, FTMPI_COLL_MODE, FTMPI_COLL_MODE_STRICT, code)
    call check(code == MPI_SUCCESS .and. attribute(FTMPI_COLL_MODE) == FTMPI_COLL_MODE_STRICT, 'strict')
    call MPI_Barrier(MPI_COMM_WORLD)
    call check(state_of(MPI_COMM_WORLD%MPI_VAL) == FT_OK, 'whole, by the older module')
    call check(attribute(FTMPI_COLL_MODE) == FTMPI_COLL_MODE_LOOSE, 'loose')
  end subroutine before

  subroutine broken()
    integer, allocatable :: states(:)
    call check(attribute(FTMPI_COMM_STATE) == FT_DETECTED, 'broken')
    call check(state_of(MPI_COMM_WORLD%MPI_VAL) == FT_DETECTED, 'broken, by the older module')
    call resurgo_ft_get_attr(MPI_COMM_WORLD, FTMPI_PROC_STATES, states)
    call check(all(states == [FT_PROC_OK, FT_PROC_FAILED, FT_PROC_OK, FT_PROC_OK, FT_PROC_OK]), 'who has failed')
    call look_back()
  end subroutine broken

  ! The failure, before and after rebuilding, and at a new rank.
  subroutine look_back()
    integer, allocatable :: failed(:), codes(:)
    double precision, allocatable :: times(:)
    call check(attribute(FTMPI_NUM_FAILED_PROCS) == 1, 'number')
    call resurgo_ft_get_attr(MPI_COMM_WORLD, FTMPI_FAILED_PROCS, failed)
    call resurgo_ft_get_attr(MPI_COMM_WORLD, FTMPI_FAILED_CODES, codes)
    call resurgo_ft_get_attr(MPI_COMM_WORLD, FTMPI_FAILED_AT, times)
    call check(all(failed == [1]) .and. ubound(failed, 1) == 1, 'rank')
    call check(all(codes == [137]) .and. ubound(codes, 1) == 1, 'exit code')
    call check(ubound(times, 1) == 1 .and. abs(times(1) - seconds(c_null_ptr)) < 600, 'time')
  end subroutine look_back

  subroutine rebuilt()
    integer, allocatable :: states(:)
    most = merge(4, 5, mode == FTMPI_COMM_MODE_SHRINK)
    call MPI_Comm_size(MPI_COMM_WORLD, size)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call check(size == most .and. attribute(FTMPI_COMM_STATE) == FT_RECOVERED, 'whole again')
    call look_back()
    call resurgo_ft_get_attr(MPI_COMM_WORLD, FTMPI_PROC_STATES, states)
    if (mode == FTMPI_COMM_MODE_BLANK) then
      call check(states(2) == FT_PROC_FAILED, 'the gap')
      states(2) = FT_PROC_OK
    end if
    call check(ubound(states, 1) == most .and. all(states == FT_PROC_OK), 'members')
    call MPI_Allreduce(rank, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
    if (mode == FTMPI_COMM_MODE_BLANK) total = total + 1
    call check(code == MPI_SUCCESS .and. total == most * (most - 1) / 2, 'sum')
    if (mode /= FTMPI_COMM_MODE_BLANK) return
    call MPI_Send(rank, 1, MPI_INTEGER, 1, 0, MPI_COMM_WORLD, code)
    call MPI_Error_class(code, class)
    call check(class == MPI_ERR_RANK, 'a gap')
  end subroutine rebuilt

  integer function attribute(key) result(found)
    integer, intent(in) :: key
    call resurgo_ft_get_attr(MPI_COMM_WORLD, key, found, code)
    call check(code == MPI_SUCCESS, 'attribute')
  end function attribute

  subroutine check(right, what)
    logical, intent(in) :: right
    character(len=*), intent(in) :: what
    if (right) return
    print '(a,i0,2a)', 'WRONG: rank ', rank, ': ', what
    flush (6)
    call MPI_Abort(MPI_COMM_WORLD, 3)
  end subroutine check

  integer function argument(at)
    integer, intent(in) :: at
    character(len=16) :: word
    call get_command_argument(at, word)
    read (word, *) argument
  end function argument

end program ftmpi_states
