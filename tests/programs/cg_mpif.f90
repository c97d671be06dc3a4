! SPDX-License-Identifier: Apache-2.0
! Conjugate gradient for a slightly lifted 1-D Laplacian, with mpif.h.   cg_mpif [N=20000] [ITERATIONS=200]
program cg_mpif
  implicit none
  include 'mpif.h'
  integer, parameter :: wp = kind(1.0d0)
  integer :: ierr, rank, nranks, up, down, n, iterations, first, rows, i, k
  integer :: requests(4)
  real(wp), allocatable :: x(:), p(:), r(:), q(:), b(:)
  real(wp) :: start, rho, next, alpha, residual, norm

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, nranks, ierr)
  n = argument(1, 20000)
  iterations = argument(2, 200)
  first = int(int(n, 8) * rank / nranks)
  rows = int(int(n, 8) * (rank + 1) / nranks) - first
  up = merge(rank - 1, MPI_PROC_NULL, rank > 0)
  down = merge(rank + 1, MPI_PROC_NULL, rank < nranks - 1)
  allocate (x(0:rows + 1), p(0:rows + 1), r(rows), q(rows), b(rows))
  x = 0
  p = 0
  do i = 1, rows
    b(i) = sin(0.001_wp * (first + i)) + mod(first + i, 17) * 0.01_wp
  end do
  r = b
  p(1:rows) = r
  start = dot(b, b)
  rho = start
  do k = 1, iterations
    call linger(k, iterations)
    call apply(p, q)
    alpha = rho / dot(p(1:rows), q)
    x(1:rows) = x(1:rows) + alpha * p(1:rows)
    r = r - alpha * q
    next = dot(r, r)
    p(1:rows) = r + (next / rho) * p(1:rows)
    rho = next
    if (rho < start * 1d-24) exit
  end do
  call apply(x, q)
  residual = sqrt(dot(b - q, b - q) / start)
  if (abs(residual - sqrt(rho / start)) > 1d-6 * residual + 1d-11) then
    print *, 'rank', rank, 'residual', residual, 'not', sqrt(rho / start)
    call MPI_Abort(MPI_COMM_WORLD, 9, ierr)
  end if
  norm = sqrt(dot(x(1:rows), x(1:rows)))
  if (rank == 0) print '(a,i0,a,es24.16,a,es24.16)', 'cg_mpif n=', n, ' norm=', norm, ' residual=', residual
  call MPI_Finalize(ierr)

contains

  integer function argument(place, otherwise)
    integer, intent(in) :: place, otherwise
    character(len=32) :: text
    argument = otherwise
    if (command_argument_count() >= place) then
      call get_command_argument(place, text)
      read (text, *) argument
    end if
  end function

  real(wp) function dot(a, c)
    real(wp), intent(in) :: a(:), c(:)
    real(wp) :: mine
    mine = dot_product(a, c)
    call MPI_Allreduce(mine, dot, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
  end function

  subroutine apply(v, out)
    real(wp), intent(inout) :: v(0:)
    real(wp), intent(out) :: out(:)
    call MPI_Irecv(v(0), 1, MPI_DOUBLE_PRECISION, up, 1, MPI_COMM_WORLD, requests(1), ierr)
    call MPI_Irecv(v(rows + 1), 1, MPI_DOUBLE_PRECISION, down, 2, MPI_COMM_WORLD, requests(2), ierr)
    call MPI_Isend(v(1), 1, MPI_DOUBLE_PRECISION, up, 2, MPI_COMM_WORLD, requests(3), ierr)
    call MPI_Isend(v(rows), 1, MPI_DOUBLE_PRECISION, down, 1, MPI_COMM_WORLD, requests(4), ierr)
    call MPI_Waitall(4, requests, MPI_STATUSES_IGNORE, ierr)
    out = 2.01_wp * v(1:rows) - v(0:rows - 1) - v(2:rows + 1)
  end subroutine

  ! As in check.h.
  subroutine linger(done, all)
    use iso_c_binding, only: c_int
    integer, intent(in) :: done, all
    character(len=4096) :: awaited
    integer :: length, status, slept
    integer(c_int) :: ignored
    logical :: is_there
    interface
      integer(c_int) function usleep(microseconds) bind(c)
        use iso_c_binding, only: c_int
        integer(c_int), value :: microseconds
      end function
    end interface
    if (4_8 * done < 3_8 * all) return
    call get_environment_variable('AWAITED', awaited, length, status)
    if (status /= 0 .or. length == 0) return
    do slept = 0, 30000000 / max(1, all / 4), 10000
      inquire (file=awaited(1:length), exist=is_there)
      if (is_there) return
      ignored = usleep(10000_c_int)
    end do
  end subroutine

end program
