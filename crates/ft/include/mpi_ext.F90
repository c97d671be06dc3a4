! SPDX-License-Identifier: Apache-2.0
!
! User-Level Failure Mitigation in Fortran, for programs that `resurgo run --ft` runs; FT-MPI's names, for those that
! `resurgo run --ft-mode` runs; and checkpoints in memory. resurgo_ft.h describes the names of the last two. Compile
! this file with the program and with MPICH's modules; link libresurgo-ft.so:
!
!   mpifort /usr/local/include/resurgo/mpi_ext.F90 app.f90 -L /usr/local/lib/resurgo -lresurgo-ft
!
! Programs with `use mpi_f08` add `use mpi_f08_ext`; those with `use mpi` or mpif.h add `use mpi_ext`.
!
! MPICH itself has MPIX_Comm_revoke, _shrink, _agree, _failure_ack and _failure_get_acked, and newer versions also
! MPIX_Comm_get_failed. If the compiler says that this one is ambiguous, compile with -DMPICH_HAS_GET_FAILED.

module resurgo_ft_c
  use, intrinsic :: iso_c_binding, only: c_double, c_f_pointer, c_int, c_int64_t, c_intptr_t, c_null_ptr, c_ptr
  implicit none

  ! FT-MPI: attributes of a communicator, for resurgo_ft_get_attr and resurgo_ft_set_attr.
  integer, parameter :: FTMPI_COMM_MODE = int(z'7f465400'), FTMPI_MSG_MODE = int(z'7f465401')
  integer, parameter :: FTMPI_COMM_STATE = int(z'7f465402'), FTMPI_NUM_FAILED_PROCS = int(z'7f465403')
  integer, parameter :: FTMPI_FAILED_PROCS = int(z'7f465404'), FTMPI_FAILED_AT = int(z'7f465405')
  integer, parameter :: FTMPI_FAILED_CODES = int(z'7f465406'), FTMPI_PROC_STATES = int(z'7f465407')
  integer, parameter :: FTMPI_COLL_MODE = int(z'7f465408')
  integer, parameter :: FTMPI_COMM_MODE_ABORT = 0, FTMPI_COMM_MODE_BLANK = 1, FTMPI_COMM_MODE_SHRINK = 2
  integer, parameter :: FTMPI_COMM_MODE_REBUILD = 3, FTMPI_COMM_MODE_REBUILD_SHRINK = 4
  integer, parameter :: FTMPI_MSG_MODE_NOP = 0, FTMPI_MSG_MODE_CONT = 1
  integer, parameter :: FTMPI_COLL_MODE_LOOSE = 0, FTMPI_COLL_MODE_STRICT = 1
  integer, parameter :: FT_OK = 0, FT_DETECTED = 1, FT_RECOVER = 2, FT_RECOVERED = 3, FT_FAILED = 4
  integer, parameter :: FT_PROC_OK = 0, FT_PROC_UNAVAILABLE = 1, FT_PROC_JOINING = 2, FT_PROC_FAILED = 3

  ! What MPI_Init and MPI_Init_thread give as ierror, instead of MPI_SUCCESS, in a rank that is in the place of a failed
  ! one.
  integer, parameter :: MPI_INIT_RESTARTED_NODE = int(z'7f4654f0')

  integer, parameter :: RESURGO_FT_PARTNER = 0, RESURGO_FT_PARITY = 1, RESURGO_FT_ALL = -1
  integer, parameter :: RESURGO_FT_NOTHING = 201, RESURGO_FT_LOST = 202

  interface
    integer(c_int) function c_is_revoked(comm, flag) bind(C, name="MPIX_Comm_is_revoked")
      import c_int
      integer(c_int), value :: comm
      integer(c_int), intent(out) :: flag
    end function c_is_revoked
    integer(c_int) function c_get_failed(comm, failedgrp) bind(C, name="MPIX_Comm_get_failed")
      import c_int
      integer(c_int), value :: comm
      integer(c_int), intent(out) :: failedgrp
    end function c_get_failed
    integer(c_int) function c_ack_failed(comm, num_to_ack, num_acked) bind(C, name="MPIX_Comm_ack_failed")
      import c_int
      integer(c_int), value :: comm, num_to_ack
      integer(c_int), intent(out) :: num_acked
    end function c_ack_failed
    integer(c_int) function c_agree(comm, flag) bind(C, name="MPIX_Comm_agree")
      import c_int
      integer(c_int), value :: comm
      integer(c_int), intent(inout) :: flag
    end function c_agree
    integer(c_int) function c_iagree(comm, flag, request) bind(C, name="MPIX_Comm_iagree")
      import c_int
      integer(c_int), value :: comm
      integer(c_int), asynchronous :: flag
      integer(c_int), intent(out) :: request
    end function c_iagree
    integer(c_int) function c_ishrink(comm, newcomm, request) bind(C, name="MPIX_Comm_ishrink")
      import c_int
      integer(c_int), value :: comm
      integer(c_int), asynchronous :: newcomm
      integer(c_int), intent(out) :: request
    end function c_ishrink
    integer(c_int) function c_get_attr(comm, keyval, address, flag) bind(C, name="MPI_Comm_get_attr")
      import c_int, c_ptr
      integer(c_int), value :: comm, keyval
      type(c_ptr), intent(out) :: address
      integer(c_int), intent(out) :: flag
    end function c_get_attr
    integer(c_int) function c_set_attr(comm, keyval, mode) bind(C, name="MPI_Comm_set_attr")
      import c_int, c_intptr_t
      integer(c_int), value :: comm, keyval
      integer(c_intptr_t), value :: mode
    end function c_set_attr
    integer(c_int) function c_comm_size(comm, size) bind(C, name="MPI_Comm_size")
      import c_int
      integer(c_int), value :: comm
      integer(c_int), intent(out) :: size
    end function c_comm_size
    integer(c_int) function c_protect(id, address, count, datatype) bind(C, name="resurgo_ft_protect")
      import c_int, c_int64_t, c_ptr
      integer(c_int), value :: id, datatype
      type(c_ptr), value :: address
      integer(c_int64_t), value :: count
    end function c_protect
    integer(c_int) function c_unprotect(id) bind(C, name="resurgo_ft_unprotect")
      import c_int
      integer(c_int), value :: id
    end function c_unprotect
    integer(c_int) function c_checkpoint(comm, version, scheme, losses) bind(C, name="resurgo_ft_checkpoint")
      import c_int
      integer(c_int), value :: comm, version, scheme, losses
    end function c_checkpoint
    integer(c_int) function c_restore(comm, version) bind(C, name="resurgo_ft_restore")
      import c_int
      integer(c_int), value :: comm
      integer(c_int), intent(inout) :: version
    end function c_restore
    integer(c_int) function c_find(comm, version) bind(C, name="resurgo_ft_find")
      import c_int
      integer(c_int), value :: comm
      integer(c_int), intent(inout) :: version
    end function c_find
    integer(c_int) function c_size(rank, id, bytes) bind(C, name="resurgo_ft_size")
      import c_int, c_int64_t
      integer(c_int), value :: rank, id
      integer(c_int64_t), intent(out) :: bytes
    end function c_size
    integer(c_int) function c_inherited(most, ranks, count) bind(C, name="resurgo_ft_inherited")
      import c_int
      integer(c_int), value :: most
      integer(c_int), intent(out) :: ranks(*), count
    end function c_inherited
    integer(c_int) function c_read(comm, rank, id, address, count, datatype) bind(C, name="resurgo_ft_read")
      import c_int, c_int64_t, c_ptr
      integer(c_int), value :: comm, rank, id, datatype
      type(c_ptr), value :: address
      integer(c_int64_t), value :: count
    end function c_read
  end interface

contains

  subroutine give(code, ierror)
    integer(c_int), intent(in) :: code
    integer, optional, intent(out) :: ierror
    if (present(ierror)) ierror = code
  end subroutine give

  ! Where an attribute's values are, and how many: of all members, of those that have failed, or one.
  subroutine look_up(comm, keyval, address, number, ierror)
    integer, intent(in) :: comm, keyval
    type(c_ptr), intent(out) :: address
    integer, intent(out) :: number
    integer, optional, intent(out) :: ierror
    integer(c_int), pointer :: failed
    integer(c_int) :: code, flag, size
    address = c_null_ptr
    number = 0
    size = 1
    code = 0
    select case (keyval)
    case (FTMPI_FAILED_PROCS, FTMPI_FAILED_AT, FTMPI_FAILED_CODES)
      code = c_get_attr(int(comm, c_int), FTMPI_NUM_FAILED_PROCS, address, flag)
      if (code == 0) then
        call c_f_pointer(address, failed)
        size = failed
      end if
    case (FTMPI_PROC_STATES)
      code = c_comm_size(int(comm, c_int), size)
    end select
    if (code == 0) code = c_get_attr(int(comm, c_int), int(keyval, c_int), address, flag)
    if (code == 0) number = size
    call give(code, ierror)
  end subroutine look_up

  subroutine get_number(comm, keyval, value, ierror)
    integer, intent(in) :: comm, keyval
    integer, intent(out) :: value
    integer, optional, intent(out) :: ierror
    integer, allocatable :: values(:)
    call get_numbers(comm, keyval, values, ierror)
    value = -1
    if (size(values) > 0) value = values(1)
  end subroutine get_number

  subroutine get_numbers(comm, keyval, values, ierror)
    integer, intent(in) :: comm, keyval
    integer, allocatable, intent(out) :: values(:)
    integer, optional, intent(out) :: ierror
    integer(c_int), pointer :: found(:)
    type(c_ptr) :: address
    integer :: number
    call look_up(comm, keyval, address, number, ierror)
    allocate (values(number))
    if (number == 0) return
    call c_f_pointer(address, found, [number])
    values = found
  end subroutine get_numbers

  subroutine get_times(comm, keyval, values, ierror)
    integer, intent(in) :: comm, keyval
    real(c_double), allocatable, intent(out) :: values(:)
    integer, optional, intent(out) :: ierror
    real(c_double), pointer :: found(:)
    type(c_ptr) :: address
    integer :: number
    call look_up(comm, keyval, address, number, ierror)
    allocate (values(number))
    if (number == 0) return
    call c_f_pointer(address, found, [number])
    values = found
  end subroutine get_times

  subroutine set_mode(comm, keyval, mode, ierror)
    integer, intent(in) :: comm, keyval, mode
    integer, optional, intent(out) :: ierror
    call give(c_set_attr(int(comm, c_int), int(keyval, c_int), int(mode, c_intptr_t)), ierror)
  end subroutine set_mode

  subroutine resurgo_ft_unprotect(id, ierror)
    integer, intent(in) :: id
    integer, optional, intent(out) :: ierror
    call give(c_unprotect(int(id, c_int)), ierror)
  end subroutine resurgo_ft_unprotect

  subroutine resurgo_ft_size(rank, id, bytes, ierror)
    integer, intent(in) :: rank, id
    integer(c_int64_t), intent(out) :: bytes
    integer, optional, intent(out) :: ierror
    call give(c_size(int(rank, c_int), int(id, c_int), bytes), ierror)
  end subroutine resurgo_ft_size

  subroutine resurgo_ft_inherited(ranks, count, ierror)
    integer, intent(out) :: ranks(:), count
    integer, optional, intent(out) :: ierror
    integer(c_int) :: all(size(ranks)), number
    call give(c_inherited(int(size(ranks), c_int), all, number), ierror)
    count = number
    ranks(:min(count, size(ranks))) = all(:min(count, size(ranks)))
  end subroutine resurgo_ft_inherited
end module resurgo_ft_c

module mpi_ext
  use resurgo_ft_c
  implicit none
  private

  integer, parameter, public :: MPIX_ERR_PROC_FAILED = 101
  integer, parameter, public :: MPIX_ERR_PROC_FAILED_PENDING = 102
  integer, parameter, public :: MPIX_ERR_REVOKED = 103

  public :: MPIX_Comm_is_revoked, MPIX_Comm_ack_failed, MPIX_Comm_iagree, MPIX_Comm_ishrink
#ifndef MPICH_HAS_GET_FAILED
  public :: MPIX_Comm_get_failed
#endif

  public :: FTMPI_COMM_MODE, FTMPI_MSG_MODE, FTMPI_COLL_MODE, FTMPI_COMM_STATE, FTMPI_NUM_FAILED_PROCS
  public :: FTMPI_FAILED_PROCS, FTMPI_FAILED_AT, FTMPI_FAILED_CODES, FTMPI_PROC_STATES
  public :: FTMPI_COMM_MODE_ABORT, FTMPI_COMM_MODE_BLANK, FTMPI_COMM_MODE_SHRINK, FTMPI_COMM_MODE_REBUILD
  public :: FTMPI_COMM_MODE_REBUILD_SHRINK, FTMPI_MSG_MODE_NOP, FTMPI_MSG_MODE_CONT
  public :: FTMPI_COLL_MODE_LOOSE, FTMPI_COLL_MODE_STRICT
  public :: FT_OK, FT_DETECTED, FT_RECOVER, FT_RECOVERED, FT_FAILED
  public :: FT_PROC_OK, FT_PROC_UNAVAILABLE, FT_PROC_JOINING, FT_PROC_FAILED, MPI_INIT_RESTARTED_NODE
  public :: resurgo_ft_get_attr, resurgo_ft_set_attr

  ! FT-MPI's programs give MPI_Comm_dup this for the new communicator. It makes no difference.
  integer, parameter, public :: FT_MPI_CHECK_RECOVER = int(z'7f465480')

  ! A value is an INTEGER. FTMPI_FAILED_PROCS, _CODES and FTMPI_PROC_STATES need an allocatable array of them, and
  ! FTMPI_FAILED_AT one of DOUBLE PRECISION. MPI's own MPI_Comm_get_attr does not know these keys in Fortran.
  interface resurgo_ft_get_attr
    procedure get_number, get_numbers, get_times
  end interface resurgo_ft_get_attr
  interface resurgo_ft_set_attr
    procedure set_mode
  end interface resurgo_ft_set_attr

  public :: RESURGO_FT_PARTNER, RESURGO_FT_PARITY, RESURGO_FT_ALL, RESURGO_FT_NOTHING, RESURGO_FT_LOST
  public :: resurgo_ft_protect, resurgo_ft_unprotect, resurgo_ft_checkpoint, resurgo_ft_restore, resurgo_ft_find
  public :: resurgo_ft_size, resurgo_ft_inherited, resurgo_ft_read

  ! The address is that of a target: c_loc(x).
  interface resurgo_ft_protect
    module procedure protect, protect_long
  end interface resurgo_ft_protect

contains

  subroutine MPIX_Comm_is_revoked(comm, flag, ierror)
    integer, intent(in) :: comm
    logical, intent(out) :: flag
    integer, intent(out) :: ierror
    integer(c_int) :: is
    ierror = c_is_revoked(int(comm, c_int), is)
    flag = is /= 0
  end subroutine MPIX_Comm_is_revoked

#ifndef MPICH_HAS_GET_FAILED
  subroutine MPIX_Comm_get_failed(comm, failedgrp, ierror)
    integer, intent(in) :: comm
    integer, intent(out) :: failedgrp, ierror
    integer(c_int) :: group
    ierror = c_get_failed(int(comm, c_int), group)
    failedgrp = group
  end subroutine MPIX_Comm_get_failed
#endif

  subroutine MPIX_Comm_ack_failed(comm, num_to_ack, num_acked, ierror)
    integer, intent(in) :: comm, num_to_ack
    integer, intent(out) :: num_acked, ierror
    integer(c_int) :: acked
    ierror = c_ack_failed(int(comm, c_int), int(num_to_ack, c_int), acked)
    num_acked = acked
  end subroutine MPIX_Comm_ack_failed

  ! Until the request has ended, MPI reads and writes the flag, and the new communicator.
  subroutine MPIX_Comm_iagree(comm, flag, request, ierror)
    integer, intent(in) :: comm
    integer, asynchronous :: flag
    integer, intent(out) :: request, ierror
    ierror = c_iagree(int(comm, c_int), flag, request)
  end subroutine MPIX_Comm_iagree

  subroutine MPIX_Comm_ishrink(comm, newcomm, request, ierror)
    integer, intent(in) :: comm
    integer, asynchronous :: newcomm
    integer, intent(out) :: request, ierror
    ierror = c_ishrink(int(comm, c_int), newcomm, request)
  end subroutine MPIX_Comm_ishrink

  subroutine protect(id, address, count, datatype, ierror)
    integer, intent(in) :: id, count
    type(c_ptr), intent(in) :: address
    integer, intent(in) :: datatype
    integer, optional, intent(out) :: ierror
    call protect_long(id, address, int(count, c_int64_t), datatype, ierror)
  end subroutine protect

  subroutine protect_long(id, address, count, datatype, ierror)
    integer, intent(in) :: id
    type(c_ptr), intent(in) :: address
    integer(c_int64_t), intent(in) :: count
    integer, intent(in) :: datatype
    integer, optional, intent(out) :: ierror
    call give(c_protect(int(id, c_int), address, count, int(datatype, c_int)), ierror)
  end subroutine protect_long

  subroutine resurgo_ft_checkpoint(comm, version, scheme, losses, ierror)
    integer, intent(in) :: comm
    integer, intent(in) :: version, scheme, losses
    integer, optional, intent(out) :: ierror
    call give(c_checkpoint(int(comm, c_int), int(version, c_int), int(scheme, c_int), int(losses, c_int)), ierror)
  end subroutine resurgo_ft_checkpoint

  subroutine resurgo_ft_restore(comm, version, ierror)
    integer, intent(in) :: comm
    integer, intent(inout) :: version
    integer, optional, intent(out) :: ierror
    integer(c_int) :: number
    number = version
    call give(c_restore(int(comm, c_int), number), ierror)
    version = number
  end subroutine resurgo_ft_restore

  subroutine resurgo_ft_find(comm, version, ierror)
    integer, intent(in) :: comm
    integer, intent(inout) :: version
    integer, optional, intent(out) :: ierror
    integer(c_int) :: number
    number = version
    call give(c_find(int(comm, c_int), number), ierror)
    version = number
  end subroutine resurgo_ft_find

  subroutine resurgo_ft_read(comm, rank, id, address, count, datatype, ierror)
    integer, intent(in) :: comm
    integer, intent(in) :: rank, id
    type(c_ptr), intent(in) :: address
    integer(c_int64_t), intent(in) :: count
    integer, intent(in) :: datatype
    integer, optional, intent(out) :: ierror
    call give(c_read(int(comm, c_int), int(rank, c_int), int(id, c_int), address, count, int(datatype, c_int)), &
      ierror)
  end subroutine resurgo_ft_read

end module mpi_ext

module mpi_f08_ext
  use mpi_f08, only: MPI_Comm, MPI_Datatype, MPI_Group, MPI_Request
  use mpi_ext, only: MPIX_ERR_PROC_FAILED, MPIX_ERR_PROC_FAILED_PENDING, MPIX_ERR_REVOKED
  use resurgo_ft_c
  implicit none
  private

  public :: MPIX_ERR_PROC_FAILED, MPIX_ERR_PROC_FAILED_PENDING, MPIX_ERR_REVOKED
  public :: MPIX_Comm_is_revoked, MPIX_Comm_ack_failed, MPIX_Comm_agree
  public :: MPIX_Comm_iagree, MPIX_Comm_ishrink
#ifndef MPICH_HAS_GET_FAILED
  public :: MPIX_Comm_get_failed
#endif

  ! MPICH's own takes a LOGICAL, which is one bit.
  interface MPIX_Comm_agree
    module procedure agree_on_bits
  end interface MPIX_Comm_agree

  public :: FTMPI_COMM_MODE, FTMPI_MSG_MODE, FTMPI_COLL_MODE, FTMPI_COMM_STATE, FTMPI_NUM_FAILED_PROCS
  public :: FTMPI_FAILED_PROCS, FTMPI_FAILED_AT, FTMPI_FAILED_CODES, FTMPI_PROC_STATES
  public :: FTMPI_COMM_MODE_ABORT, FTMPI_COMM_MODE_BLANK, FTMPI_COMM_MODE_SHRINK, FTMPI_COMM_MODE_REBUILD
  public :: FTMPI_COMM_MODE_REBUILD_SHRINK, FTMPI_MSG_MODE_NOP, FTMPI_MSG_MODE_CONT
  public :: FTMPI_COLL_MODE_LOOSE, FTMPI_COLL_MODE_STRICT
  public :: FT_OK, FT_DETECTED, FT_RECOVER, FT_RECOVERED, FT_FAILED
  public :: FT_PROC_OK, FT_PROC_UNAVAILABLE, FT_PROC_JOINING, FT_PROC_FAILED, MPI_INIT_RESTARTED_NODE
  public :: resurgo_ft_get_attr, resurgo_ft_set_attr

  ! FT-MPI's programs give MPI_Comm_dup this for the new communicator. It makes no difference.
  type(MPI_Comm), parameter, public :: FT_MPI_CHECK_RECOVER = MPI_Comm(int(z'7f465480'))

  ! A value is an INTEGER. FTMPI_FAILED_PROCS, _CODES and FTMPI_PROC_STATES need an allocatable array of them, and
  ! FTMPI_FAILED_AT one of DOUBLE PRECISION. MPI's own MPI_Comm_get_attr does not know these keys in Fortran.
  interface resurgo_ft_get_attr
    procedure get_number_08, get_numbers_08, get_times_08
  end interface resurgo_ft_get_attr
  interface resurgo_ft_set_attr
    procedure set_mode_08
  end interface resurgo_ft_set_attr

  public :: RESURGO_FT_PARTNER, RESURGO_FT_PARITY, RESURGO_FT_ALL, RESURGO_FT_NOTHING, RESURGO_FT_LOST
  public :: resurgo_ft_protect, resurgo_ft_unprotect, resurgo_ft_checkpoint, resurgo_ft_restore, resurgo_ft_find
  public :: resurgo_ft_size, resurgo_ft_inherited, resurgo_ft_read

  ! The address is that of a target: c_loc(x).
  interface resurgo_ft_protect
    module procedure protect, protect_long
  end interface resurgo_ft_protect

contains

  subroutine get_number_08(comm, keyval, value, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(in) :: keyval
    integer, intent(out) :: value
    integer, optional, intent(out) :: ierror
    call get_number(comm%MPI_VAL, keyval, value, ierror)
  end subroutine get_number_08

  subroutine get_numbers_08(comm, keyval, values, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(in) :: keyval
    integer, allocatable, intent(out) :: values(:)
    integer, optional, intent(out) :: ierror
    call get_numbers(comm%MPI_VAL, keyval, values, ierror)
  end subroutine get_numbers_08

  subroutine get_times_08(comm, keyval, values, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(in) :: keyval
    real(c_double), allocatable, intent(out) :: values(:)
    integer, optional, intent(out) :: ierror
    call get_times(comm%MPI_VAL, keyval, values, ierror)
  end subroutine get_times_08

  subroutine set_mode_08(comm, keyval, mode, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(in) :: keyval, mode
    integer, optional, intent(out) :: ierror
    call set_mode(comm%MPI_VAL, keyval, mode, ierror)
  end subroutine set_mode_08

  subroutine MPIX_Comm_is_revoked(comm, flag, ierror)
    type(MPI_Comm), intent(in) :: comm
    logical, intent(out) :: flag
    integer, optional, intent(out) :: ierror
    integer(c_int) :: code, is
    code = c_is_revoked(int(comm%MPI_VAL, c_int), is)
    flag = is /= 0
    if (present(ierror)) ierror = code
  end subroutine MPIX_Comm_is_revoked

#ifndef MPICH_HAS_GET_FAILED
  subroutine MPIX_Comm_get_failed(comm, failedgrp, ierror)
    type(MPI_Comm), intent(in) :: comm
    type(MPI_Group), intent(out) :: failedgrp
    integer, optional, intent(out) :: ierror
    integer(c_int) :: code, group
    code = c_get_failed(int(comm%MPI_VAL, c_int), group)
    failedgrp%MPI_VAL = group
    if (present(ierror)) ierror = code
  end subroutine MPIX_Comm_get_failed
#endif

  subroutine MPIX_Comm_ack_failed(comm, num_to_ack, num_acked, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(in) :: num_to_ack
    integer, intent(out) :: num_acked
    integer, optional, intent(out) :: ierror
    integer(c_int) :: code, acked
    code = c_ack_failed(int(comm%MPI_VAL, c_int), int(num_to_ack, c_int), acked)
    num_acked = acked
    if (present(ierror)) ierror = code
  end subroutine MPIX_Comm_ack_failed

  subroutine agree_on_bits(comm, flag, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(inout) :: flag
    integer, optional, intent(out) :: ierror
    integer(c_int) :: code, bits
    bits = int(flag, c_int)
    code = c_agree(int(comm%MPI_VAL, c_int), bits)
    flag = bits
    if (present(ierror)) ierror = code
  end subroutine agree_on_bits

  ! Until the request has ended, MPI reads and writes the flag, and the new communicator.
  subroutine MPIX_Comm_iagree(comm, flag, request, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, asynchronous :: flag
    type(MPI_Request), intent(out) :: request
    integer, optional, intent(out) :: ierror
    integer(c_int) :: code
    code = c_iagree(int(comm%MPI_VAL, c_int), flag, request%MPI_VAL)
    if (present(ierror)) ierror = code
  end subroutine MPIX_Comm_iagree

  subroutine MPIX_Comm_ishrink(comm, newcomm, request, ierror)
    type(MPI_Comm), intent(in) :: comm
    type(MPI_Comm), asynchronous :: newcomm
    type(MPI_Request), intent(out) :: request
    integer, optional, intent(out) :: ierror
    integer(c_int) :: code
    code = c_ishrink(int(comm%MPI_VAL, c_int), newcomm%MPI_VAL, request%MPI_VAL)
    if (present(ierror)) ierror = code
  end subroutine MPIX_Comm_ishrink

  subroutine protect(id, address, count, datatype, ierror)
    integer, intent(in) :: id, count
    type(c_ptr), intent(in) :: address
    type(MPI_Datatype), intent(in) :: datatype
    integer, optional, intent(out) :: ierror
    call protect_long(id, address, int(count, c_int64_t), datatype, ierror)
  end subroutine protect

  subroutine protect_long(id, address, count, datatype, ierror)
    integer, intent(in) :: id
    type(c_ptr), intent(in) :: address
    integer(c_int64_t), intent(in) :: count
    type(MPI_Datatype), intent(in) :: datatype
    integer, optional, intent(out) :: ierror
    call give(c_protect(int(id, c_int), address, count, int(datatype%MPI_VAL, c_int)), ierror)
  end subroutine protect_long

  subroutine resurgo_ft_checkpoint(comm, version, scheme, losses, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(in) :: version, scheme, losses
    integer, optional, intent(out) :: ierror
    call give(c_checkpoint(int(comm%MPI_VAL, c_int), int(version, c_int), int(scheme, c_int), int(losses, c_int)), ierror)
  end subroutine resurgo_ft_checkpoint

  subroutine resurgo_ft_restore(comm, version, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(inout) :: version
    integer, optional, intent(out) :: ierror
    integer(c_int) :: number
    number = version
    call give(c_restore(int(comm%MPI_VAL, c_int), number), ierror)
    version = number
  end subroutine resurgo_ft_restore

  subroutine resurgo_ft_find(comm, version, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(inout) :: version
    integer, optional, intent(out) :: ierror
    integer(c_int) :: number
    number = version
    call give(c_find(int(comm%MPI_VAL, c_int), number), ierror)
    version = number
  end subroutine resurgo_ft_find

  subroutine resurgo_ft_read(comm, rank, id, address, count, datatype, ierror)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(in) :: rank, id
    type(c_ptr), intent(in) :: address
    integer(c_int64_t), intent(in) :: count
    type(MPI_Datatype), intent(in) :: datatype
    integer, optional, intent(out) :: ierror
    call give(c_read(int(comm%MPI_VAL, c_int), int(rank, c_int), int(id, c_int), address, count, int(datatype%MPI_VAL, c_int)), &
      ierror)
  end subroutine resurgo_ft_read

end module mpi_f08_ext
