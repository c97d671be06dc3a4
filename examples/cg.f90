! SPDX-License-Identifier: Apache-2.0
!
! Conjugate gradients with checkpoints in memory; any rank may be lost at any moment, also rank 0.
!
!   resurgo run --ft -n 4 ./cg_f08 [N [STEPS]]
!
! Solves the Laplace equation on N x N points. The matrix is not stored. The lines of the grid form 24 blocks. Each
! rank has some neighbouring blocks; with fewer ranks each has more.
!
! - Every 20 steps all ranks make a checkpoint: each keeps a copy of its blocks, and another rank has one, too.
! - After a loss the ranks that are left share the blocks anew, and each asks for the numbers of its blocks. Those of a
!   lost rank come from its partner. If both are lost, all begin again.
! - Sums are made block by block, in the same order with any number of ranks. So the answer is the same, bit for bit.

program cg
  use mpi_f08
  use mpi_f08_ext
  use, intrinsic :: iso_c_binding, only: c_loc
  use, intrinsic :: iso_fortran_env, only: real64, error_unit, output_unit
  implicit none

  integer, parameter :: BLOCKS = 24, EVERY = 20

  type(MPI_Comm) :: comm
  integer :: rank, size, n, lines, steps, step
  integer :: first, last                                          ! my blocks are first, ..., last - 1
  real(real64), allocatable, target :: x(:, :), r(:, :), p(:, :), q(:, :) ! points of my lines; p has one more at each end
  real(real64), target :: rho                                     ! r * r
  real(real64) :: norm                                            ! in the end x * x
  logical :: fine

  call MPI_Init()
  n = argument(1, 480)
  steps = argument(2, 500)
  lines = n / BLOCKS
  ! A communicator of our own. Lost ranks leave messages that nobody receives; in MPI_COMM_WORLD these would make
  ! MPI_Finalize fail. Before this, the loss of a rank ends the job.
  call MPI_Comm_dup(MPI_COMM_WORLD, comm)
  call MPI_Comm_rank(comm, rank)
  call MPI_Comm_size(comm, size)
  if (n < BLOCKS .or. mod(n, BLOCKS) /= 0 .or. size > BLOCKS) then
    if (rank == 0) write (error_unit, '(2(a,i0),a)') 'cg: N must be a multiple of ', BLOCKS, ', and there may be ', &
      BLOCKS, ' ranks'
    call MPI_Finalize()
    stop 2
  end if
  ! From now on calls return errors. Otherwise the first loss would end the job.
  call MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN)

  fine = restore()
  do
    if (fine) fine = save()
    if (.not. all_good(fine)) then
      call shrink()
      fine = restore()
      cycle
    end if
    if (step >= steps) exit
    if (rank == 0 .and. mod(step / EVERY, steps / EVERY / 10 + 1) == 0) write (error_unit, '(2(a,i0),a)') 'cg: step ', &
      step, ' of ', steps, ' is saved'
    fine = iterate(min(step + EVERY, steps))
  end do

  ! The lowest rank prints. If one is lost meanwhile, it may have been that one: then the next prints again.
  do
    if (rank == 0) then
      write (output_unit, '(3(a,i0),2(a,es22.16e2))') 'cg: ', n, ' x ', n, ', ', steps, ' steps, r*r ', rho, &
        ', x*x ', norm
      flush (output_unit)
    end if
    if (all_good(.true.)) exit
    call shrink()
  end do
  call MPI_Finalize()

contains

  ! good(), all_good() and shrink(): as in sweep.f90, which explains them.

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
    write (error_unit, '(2a)') 'cg: ', text(:length)
    call MPI_Abort(comm, 1)
  end function good

  logical function all_good(mine)
    logical, intent(in) :: mine
    character(len=4096) :: library
    integer :: flag, code
    call get_environment_variable('LD_PRELOAD', library)
    if (index(library, 'libresurgo-ft') == 0) then
      call MPI_Allreduce(mine, all_good, 1, MPI_LOGICAL, MPI_LAND, comm)
      return
    end if
    flag = merge(1, 0, mine)
    call MPIX_Comm_agree(comm, flag, code)
    all_good = code == MPI_SUCCESS .and. flag == 1
  end function all_good

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

  ! ---- Checkpoints. ----

  ! The lines of block `at` are from(at) to upto(at) of x, r and p.
  integer function from(at)
    integer, intent(in) :: at
    from = (at - first) * lines + 1
  end function from

  integer function upto(at)
    integer, intent(in) :: at
    upto = (at - first + 1) * lines
  end function upto

  logical function save()
    integer :: code
    call resurgo_ft_checkpoint(comm, step, RESURGO_FT_PARTNER, 1, code)
    save = good(code)
  end function save

  ! Shares the blocks among the ranks and fills them: from the last checkpoint, or as they are in the beginning.
  logical function restore()
    integer :: at, mine, code
    logical :: is_new
    first = rank * BLOCKS / size
    last = (rank + 1) * BLOCKS / size
    mine = (last - first) * lines
    if (allocated(x)) deallocate (x, r, p, q)
    allocate (x(n, mine), r(n, mine), q(n, mine), p(n, 0:mine + 1))
    ! Each block of each vector has a number of its own, whichever rank it belongs to.
    call resurgo_ft_unprotect(RESURGO_FT_ALL)
    do at = first, last - 1
      call resurgo_ft_protect(3 * at, c_loc(x(1, from(at))), n * lines, MPI_DOUBLE_PRECISION)
      call resurgo_ft_protect(3 * at + 1, c_loc(r(1, from(at))), n * lines, MPI_DOUBLE_PRECISION)
      call resurgo_ft_protect(3 * at + 2, c_loc(p(1, from(at))), n * lines, MPI_DOUBLE_PRECISION)
    end do
    call resurgo_ft_protect(3 * BLOCKS, c_loc(rho), 1, MPI_DOUBLE_PRECISION)
    x = 0
    r = 1   ! the right side
    p = 0   ! also around the grid
    p(:, 1:mine) = r
    call resurgo_ft_restore(comm, step, code)
    is_new = code == RESURGO_FT_NOTHING .or. code == RESURGO_FT_LOST
    restore = is_new
    if (.not. is_new) restore = good(code)
    if (.not. restore) return
    if (is_new) step = 0
    if (rank == 0) write (error_unit, '(2(a,i0))') 'cg: ', size, ' ranks go on from step ', step
    if (is_new) restore = dot(r, r, rho)
  end function restore

  ! ---- The solver. Each function tells whether all calls of MPI have succeeded. ----

  ! Every rank adds the same numbers in the same order: a sum for each block. Those of other ranks are zero here.
  logical function dot(a, b, total)
    real(real64), intent(in) :: a(:, :), b(:, :)
    real(real64), intent(out) :: total
    real(real64) :: sums(0:BLOCKS - 1)
    integer :: at, line, point, code
    sums = 0
    do at = first, last - 1
      do line = from(at), upto(at)
        do point = 1, n
          sums(at) = sums(at) + a(point, line) * b(point, line)
        end do
      end do
    end do
    call MPI_Allreduce(MPI_IN_PLACE, sums, BLOCKS, MPI_DOUBLE_PRECISION, MPI_SUM, comm, code)
    dot = good(code)
    total = 0
    do at = 0, BLOCKS - 1
      total = total + sums(at)
    end do
  end function dot

  ! q = A p, with lines of neighbours above and below. There is nothing (zero) around the grid.
  logical function multiply()
    integer :: above, below, mine, line, at, code
    real(real64) :: left, right
    above = merge(rank - 1, MPI_PROC_NULL, rank > 0)
    below = merge(rank + 1, MPI_PROC_NULL, rank < size - 1)
    mine = (last - first) * lines
    call MPI_Sendrecv(p(:, 1), n, MPI_DOUBLE_PRECISION, above, 1, p(:, mine + 1), n, MPI_DOUBLE_PRECISION, below, 1, &
      comm, MPI_STATUS_IGNORE, code)
    multiply = good(code)
    if (.not. multiply) return
    call MPI_Sendrecv(p(:, mine), n, MPI_DOUBLE_PRECISION, below, 2, p(:, 0), n, MPI_DOUBLE_PRECISION, above, 2, &
      comm, MPI_STATUS_IGNORE, code)
    multiply = good(code)
    if (.not. multiply) return
    do line = 1, mine
      do at = 1, n
        left = 0
        right = 0
        if (at > 1) left = p(at - 1, line)
        if (at < n) right = p(at + 1, line)
        q(at, line) = 4 * p(at, line) - left - right - p(at, line - 1) - p(at, line + 1)
      end do
    end do
  end function multiply

  logical function iterate(until)
    integer, intent(in) :: until
    real(real64) :: pq, alpha, next
    integer :: mine
    mine = (last - first) * lines
    iterate = .true.
    do while (step < until)
      iterate = multiply()
      if (iterate) iterate = dot(p(:, 1:mine), q, pq)
      if (.not. iterate) return
      alpha = rho / pq
      x = x + alpha * p(:, 1:mine)
      r = r - alpha * q
      iterate = dot(r, r, next)
      if (.not. iterate) return
      p(:, 1:mine) = r + next / rho * p(:, 1:mine)
      rho = next
      step = step + 1
    end do
    iterate = dot(x, x, norm)
  end function iterate

  ! Word `at` of the command line.
  integer function argument(at, otherwise)
    integer, intent(in) :: at, otherwise
    character(len=32) :: word
    argument = otherwise
    if (command_argument_count() < at) return
    call get_command_argument(at, word)
    read (word, *) argument
  end function argument

end program cg
