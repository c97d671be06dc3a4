! SPDX-License-Identifier: Apache-2.0
! The heat equation on a plate, rows shared out, with the mpi_f08 module; the result does not depend on the number of
! ranks.   heat_f08 [N=200] [STEPS=400] [RESULT_FILE]
program heat_f08
  use mpi_f08
  use iso_fortran_env, only: int64, real64
  implicit none
  integer :: rank, nranks, up, down, n, steps, first, rows, i, j, step, r, unit
  real(real64), allocatable :: now(:, :), next(:, :), plate(:, :)
  integer, allocatable :: counts(:), places(:)
  real(real64) :: mine, peak
  type(MPI_Request) :: requests(4)
  type(MPI_Comm) :: line
  character(len=4096) :: path

  call MPI_Init()
  call MPI_Cart_create(MPI_COMM_WORLD, 1, [world_size()], [.false.], .false., line)
  call MPI_Comm_rank(line, rank)
  call MPI_Comm_size(line, nranks)
  call MPI_Cart_shift(line, 0, 1, up, down)
  n = argument(1, 200)
  steps = argument(2, 400)
  first = place(rank)
  rows = place(rank + 1) - first
  ! Columns of these arrays are rows of the plate, so that a halo is contiguous.
  allocate (now(0:n + 1, 0:rows + 1), next(0:n + 1, 0:rows + 1), source=0.0_real64)
  do j = 1, rows
    do i = 1, n
      now(i, j) = mod((first + j) * 7919_int64 + i * 104729_int64, 1000_int64) / 1000.0_real64
    end do
  end do
  do step = 1, steps
    call linger(step, steps)
    call MPI_Irecv(now(:, 0), n + 2, MPI_DOUBLE_PRECISION, up, 1, line, requests(1))
    call MPI_Irecv(now(:, rows + 1), n + 2, MPI_DOUBLE_PRECISION, down, 2, line, requests(2))
    call MPI_Isend(now(:, 1), n + 2, MPI_DOUBLE_PRECISION, up, 2, line, requests(3))
    call MPI_Isend(now(:, rows), n + 2, MPI_DOUBLE_PRECISION, down, 1, line, requests(4))
    call MPI_Waitall(4, requests, MPI_STATUSES_IGNORE)
    do j = 1, rows
      do i = 1, n
        next(i, j) = now(i, j) + 0.2_real64 * ((now(i - 1, j) + now(i + 1, j)) + (now(i, j - 1) + now(i, j + 1)) &
                                               - 4 * now(i, j))
      end do
    end do
    now(1:n, 1:rows) = next(1:n, 1:rows)
    if (mod(step, 100) == 0) then
      mine = maxval(now(1:n, 1:rows))
      call MPI_Allreduce(mine, peak, 1, MPI_DOUBLE_PRECISION, MPI_MAX, line)
      if (peak < 0 .or. peak > 1) call MPI_Abort(MPI_COMM_WORLD, 9)
      if (rank == 0) print '(a,i0,a,es24.16)', 'step ', step, ' peak', peak
    end if
  end do
  allocate (plate(n, merge(n, 1, rank == 0)), counts(nranks), places(nranks))
  do r = 0, nranks - 1
    counts(r + 1) = n * (place(r + 1) - place(r))
    places(r + 1) = n * place(r)
  end do
  next(1:n, 1:rows) = now(1:n, 1:rows)
  call MPI_Gatherv(reshape(next(1:n, 1:rows), [n * rows]), n * rows, MPI_DOUBLE_PRECISION, plate, counts, places, &
                   MPI_DOUBLE_PRECISION, 0, line)
  if (rank == 0) then
    print '(a,i0,a,i0,a,es24.16)', 'heat_f08 n=', n, ' steps=', steps, ' sum', sum(plate)
    if (command_argument_count() >= 3) then
      call get_command_argument(3, path)
      open (newunit=unit, file=trim(path), form='unformatted', access='stream', status='replace')
      write (unit) plate
      close (unit)
    end if
  end if
  call MPI_Comm_free(line)
  call MPI_Finalize()

contains

  integer function world_size()
    call MPI_Comm_size(MPI_COMM_WORLD, world_size)
  end function

  integer function place(of_rank)
    integer, intent(in) :: of_rank
    place = int(int(n, int64) * of_rank / nranks)
  end function

  integer function argument(where, otherwise)
    integer, intent(in) :: where, otherwise
    character(len=32) :: text
    argument = otherwise
    if (command_argument_count() >= where) then
      call get_command_argument(where, text)
      read (text, *) argument
    end if
  end function

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
