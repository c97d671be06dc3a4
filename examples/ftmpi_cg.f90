! SPDX-License-Identifier: Apache-2.0
!
! The conjugate gradients of cg.f90 by FT-MPI's rules (mode REBUILD): new ranks come for lost ones.
!
!   resurgo run --ft-mode rebuild -n 4 ./ftmpi_cg_f08 [N [STEPS]]
!
! Solves the Laplace equation on N x N points. The matrix is not stored. The lines of the grid form 24 blocks, and each
! rank has some neighbouring ones.
!
! - Every 20 steps all ranks make a checkpoint: each keeps a copy of its blocks, and another rank has one, too.
! - When a rank is lost, the next call fails at every rank, whatever it waits for. MPI_Comm_dup starts a new rank in the
!   place of the lost one, which begins the program from its start. Then all ranks get their blocks of the last
!   checkpoint, the new one those of the lost rank. If that and its partner are lost, all begin again.

program ftmpi_cg
  use mpi_f08
  use mpi_f08_ext
  use, intrinsic :: iso_c_binding, only: c_loc
  use, intrinsic :: iso_fortran_env, only: real64, error_unit, output_unit
  implicit none

  integer, parameter :: BLOCKS = 24, EVERY = 20

  integer :: rank, size, n, lines, steps, step, code
  integer :: first, last                                          ! my blocks are first, ..., last - 1
  ! Points of my lines; p has one more line at each end.
  real(real64), allocatable, target :: x(:, :), r(:, :), p(:, :), q(:, :)
  real(real64), target :: rho                                     ! r * r
  real(real64) :: norm                                            ! in the end x * x
  logical :: is_new, fine

  call MPI_Init(code)
  is_new = code == MPI_INIT_RESTARTED_NODE
  n = argument(1, 480)
  steps = argument(2, 500)
  lines = n / BLOCKS
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, size)
  if (n < BLOCKS .or. mod(n, BLOCKS) /= 0 .or. size > BLOCKS) then
    if (rank == 0) write (error_unit, '(2(a,i0),a)') 'ftmpi_cg: N must be a multiple of ', BLOCKS, &
      ', and there may be ', BLOCKS, ' ranks'
    call MPI_Finalize()
    stop 2
  end if
  ! From now on calls return errors. Otherwise the first loss would end the job.
  call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)
  if (is_new) write (error_unit, '(a,i0,a)') 'ftmpi_cg: rank ', rank, ' is new'
  call prepare()
  fine = restore()
  do
    do while (fine .and. step < steps)
      fine = save()
      if (fine) fine = iterate(min(step + EVERY, steps))
    end do
    if (fine) fine = dot(x, x, norm)
    if (fine) fine = finish()
    if (fine) exit
    call rebuild()
    fine = restore()
  end do
  ! Who is lost from here on has done its part.
  call MPI_Finalize()

contains

  ! Whether a call has succeeded; if not, a process is lost. Any other error is a mistake in the program.
  logical function good(code)
    integer, intent(in) :: code
    integer :: class, length
    character(len=MPI_MAX_ERROR_STRING) :: text
    good = code == MPI_SUCCESS
    if (good) return
    call MPI_Error_class(code, class)
    if (class == MPI_ERR_OTHER) return
    call MPI_Error_string(code, text, length)
    write (error_unit, '(2a)') 'ftmpi_cg: ', text(:length)
    call MPI_Abort(MPI_COMM_WORLD, 1)
  end function good

  ! Whether collective calls have a closing barrier: they end well for all ranks, or for none. It takes time, and so is
  ! only for the end. Under another launcher there is none, and a loss ends the job.
  subroutine closing(mode)
    integer, intent(in) :: mode
    character(len=4096) :: library
    call get_environment_variable('LD_PRELOAD', library)   ! resurgo run --ft-mode names its library there
    if (index(library, 'libresurgo-ft') > 0) call resurgo_ft_set_attr(MPI_COMM_WORLD, FTMPI_COLL_MODE, mode)
  end subroutine closing

  ! All places are taken again; new ranks come from MPI_Init.
  subroutine rebuild()
    type(MPI_Comm) :: new
    integer :: code
    do
      call MPI_Comm_dup(MPI_COMM_WORLD, new, code)
      if (good(code)) exit
    end do
  end subroutine rebuild

  ! Rank 0 prints. If one is lost before the end of the barrier, all go on from the last checkpoint, and it prints
  ! again.
  logical function finish()
    integer :: code
    call closing(FTMPI_COLL_MODE_STRICT)
    if (rank == 0) then
      write (output_unit, '(3(a,i0),2(a,es22.16e2))') 'ftmpi_cg: ', n, ' x ', n, ', ', steps, ' steps, r*r ', rho, &
        ', x*x ', norm
      flush (output_unit)
    end if
    call MPI_Barrier(MPI_COMM_WORLD, code)
    finish = good(code)
  end function finish

  ! ---- Checkpoints. ----

  logical function save()
    integer :: code
    call resurgo_ft_checkpoint(MPI_COMM_WORLD, step, RESURGO_FT_PARTNER, 1, code)
    save = good(code)
    if (save .and. rank == 0 .and. mod(step / EVERY, steps / EVERY / 10 + 1) == 0) write (error_unit, '(2(a,i0),a)') &
      'ftmpi_cg: step ', step, ' of ', steps, ' is saved'
  end function save

  ! Memory for my blocks, of which checkpoints keep three vectors and a number.
  subroutine prepare()
    integer :: mine
    first = rank * BLOCKS / size
    last = (rank + 1) * BLOCKS / size
    mine = (last - first) * lines
    allocate (x(n, mine), r(n, mine), q(n, mine), p(n, 0:mine + 1))
    p = 0   ! also around the grid
    call resurgo_ft_protect(0, c_loc(x), n * mine, MPI_DOUBLE_PRECISION)
    call resurgo_ft_protect(1, c_loc(r), n * mine, MPI_DOUBLE_PRECISION)
    call resurgo_ft_protect(2, c_loc(p(1, 1)), n * mine, MPI_DOUBLE_PRECISION)
    call resurgo_ft_protect(3, c_loc(rho), 1, MPI_DOUBLE_PRECISION)
  end subroutine prepare

  ! My blocks as they were at the last checkpoint, or at first.
  logical function restore()
    integer :: mine, code
    logical :: begins
    call closing(FTMPI_COLL_MODE_LOOSE)
    call resurgo_ft_restore(MPI_COMM_WORLD, step, code)
    begins = code == RESURGO_FT_NOTHING .or. code == RESURGO_FT_LOST
    restore = begins
    if (.not. begins) restore = good(code)
    if (.not. restore) return
    if (begins) then
      mine = (last - first) * lines
      step = 0
      x = 0
      r = 1   ! the right side
      p(:, 1:mine) = r
    end if
    if (rank == 0) write (error_unit, '(2(a,i0))') 'ftmpi_cg: ', size, ' ranks go on from step ', step
    if (begins) restore = dot(r, r, rho)
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
      do line = (at - first) * lines + 1, (at - first + 1) * lines
        do point = 1, n
          sums(at) = sums(at) + a(point, line) * b(point, line)
        end do
      end do
    end do
    call MPI_Allreduce(MPI_IN_PLACE, sums, BLOCKS, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
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
      MPI_COMM_WORLD, MPI_STATUS_IGNORE, code)
    multiply = good(code)
    if (.not. multiply) return
    call MPI_Sendrecv(p(:, mine), n, MPI_DOUBLE_PRECISION, below, 2, p(:, 0), n, MPI_DOUBLE_PRECISION, above, 2, &
      MPI_COMM_WORLD, MPI_STATUS_IGNORE, code)
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

end program ftmpi_cg
