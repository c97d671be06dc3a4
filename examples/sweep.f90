! SPDX-License-Identifier: Apache-2.0
!
! A parameter sweep in rounds; any rank may be lost at any moment, also rank 0.
!
!   resurgo run --ft -n 4 ./sweep_f08 [ROUNDS [STEPS]]
!
! A ball is thrown with drag. Each round has more drag, and tries 64 angles around the best angle of the round before.
! The ranks share the angles. STEPS is the number of time steps for one second of flight. Put your own work into
! compute().
!
! After each round the ranks agree whether all of them have its results. If not, those that are left shrink the
! communicator and repeat the round. All ranks know all results, so that a lost rank takes nothing with it but its part
! of one round. The answer does not depend on the number of ranks, bit for bit.

program sweep
  use mpi_f08
  use mpi_f08_ext
  use, intrinsic :: iso_fortran_env, only: real64, error_unit, output_unit
  implicit none

  integer, parameter :: COUNT = 64
  type(MPI_Comm) :: comm
  integer :: rank, size, rounds, steps, round, at, code
  real(real64) :: best, total, drag, angles(COUNT), ranges(COUNT)
  logical :: done

  call MPI_Init()
  rounds = argument(1, 100)
  steps = argument(2, 2000)
  ! A communicator of our own. Lost ranks leave messages that nobody receives; in MPI_COMM_WORLD these would make
  ! MPI_Finalize fail. Before this, the loss of a rank ends the job.
  call MPI_Comm_dup(MPI_COMM_WORLD, comm)
  call MPI_Comm_rank(comm, rank)
  call MPI_Comm_size(comm, size)
  ! From now on calls return errors. Otherwise the first loss would end the job.
  call MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN)

  best = 45        ! the best angle so far
  total = 0        ! the ranges of the best throws
  round = 0
  do while (round < rounds)
    drag = 0.05_real64 * (round + 1) / rounds
    do at = 1, COUNT
      angles(at) = best + 0.05_real64 * (at - 1 - COUNT / 2)
      ! Every size-th angle is mine; the others are zero here, so that the sum is exact.
      ranges(at) = 0
      if (mod(at - 1, size) == rank) ranges(at) = compute(angles(at))
    end do
    call MPI_Allreduce(MPI_IN_PLACE, ranges, COUNT, MPI_DOUBLE_PRECISION, MPI_SUM, comm, code)
    done = good(code)
    if (.not. all_good(done)) then
      call shrink()
      if (rank == 0) write (error_unit, '(2(a,i0),a)') 'sweep: a rank is lost; round ', round, ' begins again with ', &
        size, ' ranks'
      cycle
    end if
    ! Now every rank has the results, and knows that all others have them.
    at = maxloc(ranges, 1)
    best = angles(at)
    total = total + ranges(at)
    if (rank == 0 .and. mod(round, rounds / 10 + 1) == 0) write (error_unit, '(3(a,i0),a)') 'sweep: round ', round, &
      ' of ', rounds, ' is done by ', size, ' ranks'
    round = round + 1
  end do

  ! The lowest rank prints. If one is lost meanwhile, it may have been that one: then the next prints again.
  do
    if (rank == 0) then
      write (output_unit, '(a,i0,2(a,es22.16e2))') 'sweep: ', rounds, ' rounds, best angle ', best, ', sum ', total
      flush (output_unit)
    end if
    if (all_good(.true.)) exit
    call shrink()
  end do
  call MPI_Finalize()

contains

  ! Whether a call has succeeded. If a process is lost, this rank revokes the communicator: others may be waiting in it
  ! for this rank. Any other error is a mistake in the program.
  logical function good(code)
    integer, intent(in) :: code
    integer :: class, length
    character(len=MPI_MAX_ERROR_STRING) :: text
    good = code == MPI_SUCCESS
    if (good) return
    call MPI_Error_class(code, class)
    if (class == MPIX_ERR_PROC_FAILED .or. class == MPIX_ERR_REVOKED) then
      call MPIX_Comm_revoke(comm)
      return
    end if
    call MPI_Error_string(code, text, length)
    write (error_unit, '(2a)') 'sweep: ', text(:length)
    call MPI_Abort(comm, 1)
  end function good

  ! Whether all ranks say that all is well, and nobody is lost. Every rank gets the same answer, although others may be
  ! lost in the middle of it. No other call promises that.
  logical function all_good(mine)
    logical, intent(in) :: mine
    character(len=4096) :: library
    integer :: flag, code
    call get_environment_variable('LD_PRELOAD', library)   ! resurgo run --ft names its library there
    if (index(library, 'libresurgo-ft') == 0) then
      ! Under another launcher a loss ends the job, and MPICH alone has no agreement.
      call MPI_Allreduce(mine, all_good, 1, MPI_LOGICAL, MPI_LAND, comm)
      return
    end if
    flag = merge(1, 0, mine)
    call MPIX_Comm_agree(comm, flag, code)
    all_good = code == MPI_SUCCESS .and. flag == 1
  end function all_good

  ! A communicator of the ranks that are left.
  subroutine shrink()
    type(MPI_Comm) :: fewer
    integer :: code
    call MPIX_Comm_shrink(comm, fewer, code)
    if (code /= MPI_SUCCESS) call MPI_Abort(comm, 1)
    call MPI_Comm_free(comm)
    comm = fewer
    call MPI_Comm_rank(comm, rank)
    call MPI_Comm_size(comm, size)
  end subroutine shrink

  ! How far a ball flies that is thrown at this angle (in degrees), with this round's drag.
  real(real64) function compute(angle) result(x)
    real(real64), intent(in) :: angle
    real(real64) :: radians, step, y, across, up, slower
    radians = angle * (3.141592653589793_real64 / 180.0_real64)
    step = 1.0_real64 / steps
    x = 0
    y = 0
    across = 30 * cos(radians)
    up = 30 * sin(radians)
    do while (y >= 0)
      slower = drag * sqrt(across * across + up * up)
      across = across - step * (slower * across)
      up = up - step * (slower * up + 9.81_real64)
      x = x + step * across
      y = y + step * up
    end do
  end function compute

  ! Word `at` of the command line.
  integer function argument(at, otherwise)
    integer, intent(in) :: at, otherwise
    character(len=32) :: word
    argument = otherwise
    if (command_argument_count() < at) return
    call get_command_argument(at, word)
    read (word, *) argument
  end function argument

end program sweep
