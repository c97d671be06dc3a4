! SPDX-License-Identifier: Apache-2.0
!
! Sums of which every rank knows the answer, in Fortran 2008. Somebody kills ranks; the others go on.
!
!   ulfm_sums_f08 STEPS

program ulfm_sums
  use mpi_f08
  use mpi_f08_ext
  implicit none
  type(MPI_Comm) :: comm
  type(MPI_Comm), asynchronous :: fewer
  type(MPI_Request) :: request
  type(MPI_Group) :: failed
  integer :: world, rank, size, steps, step, code, class, sum, gone, known
  integer, asynchronous :: good
  logical :: revoked
  character(len=16) :: word

  call get_command_argument(1, word)
  read (word, *) steps
  call MPI_Init()
  call MPI_Comm_dup(MPI_COMM_WORLD, comm)
  call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)
  call MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN)
  call MPI_Comm_rank(comm, world)
  call look()
  step = 0
  do while (step < steps)
    if (step == 10 .and. rank == 0) print '(a)', 'they compute'
    code = MPI_SUCCESS
    if (mod(step, 2) == 0) then
      call MPI_Allreduce(rank + step, sum, 1, MPI_INTEGER, MPI_SUM, comm, code)
      if (code == MPI_SUCCESS .and. sum /= size * (size - 1) / 2 + size * step) call wrong('sum', sum)
    else
      sum = merge(step, -1, rank == mod(step, size))
      call MPI_Bcast(sum, 1, MPI_INTEGER, mod(step, size), comm, code)
      if (code == MPI_SUCCESS .and. sum /= step) call wrong('bcast', sum)
    end if
    good = 7
    if (code /= MPI_SUCCESS) then
      call MPI_Error_class(code, class)
      if (class /= MPIX_ERR_PROC_FAILED .and. class /= MPIX_ERR_REVOKED) call wrong('class', class)
      call MPIX_Comm_revoke(comm)
      call MPIX_Comm_is_revoked(comm, revoked)
      if (.not. revoked) call wrong('revoked', 0)
      good = 6
    end if
    if (mod(step, 2) == 0) then
      call MPIX_Comm_agree(comm, good, code)
    else
      call MPIX_Comm_iagree(comm, good, request)
      call MPI_Wait(request, MPI_STATUS_IGNORE, code)
    end if
    if (code == MPI_SUCCESS .and. good == 7) then
      step = step + 1
    else
      if (good /= 6 .and. good /= 7) call wrong('bits', good)
      call MPIX_Comm_get_failed(comm, failed)
      call MPI_Group_size(failed, gone)
      call MPI_Group_free(failed)
      call MPIX_Comm_ack_failed(comm, size, known)
      if (known < gone) call wrong('acknowledged', known)
      if (mod(size, 2) == 0) then
        call MPIX_Comm_shrink(comm, fewer)
      else
        call MPIX_Comm_ishrink(comm, fewer, request)
        call MPI_Wait(request, MPI_STATUS_IGNORE)
      end if
      call MPI_Comm_free(comm)
      comm = fewer
      call look()
    end if
  end do
  print '(a,i0,a,i0)', 'rank ', world, ': done, ', size
  call MPI_Finalize()

contains

  subroutine look()
    call MPI_Comm_rank(comm, rank)
    call MPI_Comm_size(comm, size)
  end subroutine look

  subroutine wrong(what, got)
    character(len=*), intent(in) :: what
    integer, intent(in) :: got
    print '(a,i0,3a,i0,a,i0)', 'WRONG: rank ', world, ': ', what, ' in step ', step, ': ', got
    call MPI_Abort(MPI_COMM_WORLD, 3)
  end subroutine wrong

end program ulfm_sums
