! SPDX-License-Identifier: Apache-2.0
!
! The parameter sweep of sweep.f90 by FT-MPI's rules (mode SHRINK); any rank may be lost at any moment, also rank 0.
!
!   resurgo run --ft-mode shrink -n 4 ./ftmpi_sweep_f08 [ROUNDS [STEPS]]
!
! A ball is thrown with drag. Each round has more drag, and tries 64 angles around the best angle of the round before.
! The ranks share the angles. Put your own work into compute().
!
! When a rank is lost, the next call fails at every rank, whatever it waits for. MPI_Comm_dup makes MPI_COMM_WORLD whole
! again, without the lost ranks, and the others agree on the round from which they go on. The answer does not depend on
! the number of ranks, bit for bit.

program ftmpi_sweep
  use mpi_f08
  use mpi_f08_ext
  use, intrinsic :: iso_fortran_env, only: real64, error_unit, output_unit
  implicit none

  integer, parameter :: COUNT = 64
  integer :: rank, size, rounds, steps, done, at, code
  real(real64) :: drag, angles(COUNT), ranges(COUNT)
  real(real64) :: best, total                 ! the best angle so far, and the ranges of the best throws
  real(real64) :: best_before, total_before   ! the same before the last round

  call MPI_Init()
  rounds = argument(1, 100)
  steps = argument(2, 2000)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, size)
  ! From now on calls return errors. Otherwise the first loss would end the job.
  call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)

  best = 45
  total = 0
  done = 0
  do
    if (done < rounds) then
      drag = 0.05_real64 * (done + 1) / rounds
      do at = 1, COUNT
        angles(at) = best + 0.05_real64 * (at - 1 - COUNT / 2)
        ! Every size-th angle is mine; the others are zero here, so that the sum is exact.
        ranges(at) = 0
        if (mod(at - 1, size) == rank) ranges(at) = compute(angles(at))
      end do
      call MPI_Allreduce(MPI_IN_PLACE, ranges, COUNT, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
      if (failed(code)) then
        call recover()
        cycle
      end if
      at = maxloc(ranges, 1)
      best_before = best
      total_before = total
      best = angles(at)
      total = total + ranges(at)
      if (rank == 0 .and. mod(done, rounds / 10 + 1) == 0) write (error_unit, '(3(a,i0),a)') 'ftmpi_sweep: round ', &
        done, ' of ', rounds, ' is done by ', size, ' ranks'
      done = done + 1
      cycle
    end if

    ! Rank 0 prints. If one is lost before the end of the barrier, it may have been that one: then all go on, and the
    ! next rank 0 prints again.
    call closing(FTMPI_COLL_MODE_STRICT)
    if (rank == 0) then
      write (output_unit, '(a,i0,2(a,es22.16e2))') 'ftmpi_sweep: ', rounds, ' rounds, best angle ', best, ', sum ', &
        total
      flush (output_unit)
    end if
    call MPI_Barrier(MPI_COMM_WORLD, code)
    if (.not. failed(code)) exit
    call recover()
  end do
  ! Who is lost from here on has done its part.
  call MPI_Finalize()

contains

  ! Whether a call has failed because a process is lost. Any other error is a mistake in the program.
  logical function failed(code)
    integer, intent(in) :: code
    integer :: class, length
    character(len=MPI_MAX_ERROR_STRING) :: text
    failed = code /= MPI_SUCCESS
    if (.not. failed) return
    call MPI_Error_class(code, class)
    if (class == MPI_ERR_OTHER) return
    call MPI_Error_string(code, text, length)
    write (error_unit, '(2a)') 'ftmpi_sweep: ', text(:length)
    call MPI_Abort(MPI_COMM_WORLD, 1)
  end function failed

  ! Whether collective calls have a closing barrier: they end well for all ranks, or for none. It takes time, and so is
  ! only for the end. Under another launcher there is none, and a loss ends the job.
  subroutine closing(mode)
    integer, intent(in) :: mode
    character(len=4096) :: library
    call get_environment_variable('LD_PRELOAD', library)   ! resurgo run --ft-mode names its library there
    if (index(library, 'libresurgo-ft') > 0) call resurgo_ft_set_attr(MPI_COMM_WORLD, FTMPI_COLL_MODE, mode)
  end subroutine closing

  ! The survivors rebuild MPI_COMM_WORLD. If another rank is lost meanwhile, they begin again.
  subroutine recover()
    type(MPI_Comm) :: new
    integer :: least, code
    do
      call MPI_Comm_dup(MPI_COMM_WORLD, new, code)   ! from now on MPI_COMM_WORLD is the ranks that are left; so is new
      if (failed(code)) cycle
      call closing(FTMPI_COLL_MODE_LOOSE)   ! some may have come from the end, others from the last round
      call MPI_Allreduce(done, least, 1, MPI_INTEGER, MPI_MIN, MPI_COMM_WORLD, code)
      if (.not. failed(code)) exit
    end do
    if (least < done) then   ! some rank lacks the results of the last round: nobody is two rounds ahead
      done = least
      best = best_before
      total = total_before
    end if
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, size)
    if (rank == 0) write (error_unit, '(2(a,i0))') 'ftmpi_sweep: a rank is lost; ', size, &
      ' ranks go on with round ', done
  end subroutine recover

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

end program ftmpi_sweep
