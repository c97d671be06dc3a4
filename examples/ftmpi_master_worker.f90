! SPDX-License-Identifier: Apache-2.0
!
! The master and workers of master_worker.f90 by FT-MPI's rules (modes BLANK and CONT).
!
!   resurgo run --ft-mode blank,cont -n 4 ./ftmpi_master_worker_f08 [TASKS [POINTS]]
!
! Each task throws POINTS random points at a square and counts those in its circle; together they give pi. A task has
! random numbers of its own, so that its result does not depend on the worker. Put your own work into compute().
!
! With CONT messages between the others go on after a failure, so nothing is rebuilt: a lost worker leaves a gap. A
! receive from any rank tells the master of each failure once, and an attribute says who is lost.
!
! - The task of a lost worker goes to another worker.
! - When all workers are lost, the master computes the rest.
! - When the master (rank 0) is lost, the job ends: the results were in its memory.

program ftmpi_master_worker
  use mpi_f08
  use mpi_f08_ext
  use, intrinsic :: iso_fortran_env, only: int64, real64, error_unit, output_unit
  implicit none

  integer, parameter :: MASTER = 0, NOTHING = -1
  integer, parameter :: TASK = 1, RESULT = 2, STOP_NOW = 3   ! tags of messages
  integer :: rank, ranks, code
  integer(int64) :: tasks, points
  logical :: is_lost

  ! What the master knows.
  integer :: living                           ! workers that live
  integer(int64), allocatable :: waiting(:)   ! tasks that no worker has, as a stack
  integer(int64) :: count                     ! how many these are
  integer(int64), allocatable :: hits(:)      ! the result of each task; NOTHING: not yet known
  integer(int64), allocatable :: task_of(:)   ! the task of each worker; NOTHING: it is idle
  logical, allocatable :: lost(:)             ! which workers are lost

  call MPI_Init()
  tasks = argument(1, 200)
  points = argument(2, 100000)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  ! From now on calls return errors. Otherwise the first loss would end the job.
  call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)
  call MPI_Barrier(MPI_COMM_WORLD, code)   ! All ranks have begun. If one is lost already, the master will see that.
  is_lost = failed(code)
  if (rank == MASTER) then
    write (error_unit, '(a,i0,a,i0,a)') 'ftmpi_master_worker: ', tasks, ' tasks for ', ranks - 1, ' workers'
    call be_master()
  else
    call be_worker()
  end if
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
    write (error_unit, '(2a)') 'ftmpi_master_worker: ', text(:length)
    call MPI_Abort(MPI_COMM_WORLD, 1)
  end function failed

  ! The work of one task.
  integer(int64) function compute(number) result(inside)
    integer(int64), intent(in) :: number
    integer(int64) :: random, point
    real(real64) :: x, y
    inside = 0
    random = 1 + mod(number * 7919, 2147483646_int64)
    do point = 1, points
      random = mod(random * 16807, 2147483647_int64)
      x = random / 2147483647.0_real64
      random = mod(random * 16807, 2147483647_int64)
      y = random / 2147483647.0_real64
      if (x * x + y * y < 1.0_real64) inside = inside + 1
    end do
  end function compute

  ! The next task for an idle worker, if there is one.
  subroutine give(worker)
    integer, intent(in) :: worker
    integer :: code
    logical :: is_lost
    if (task_of(worker) /= NOTHING .or. lost(worker) .or. count == 0) return
    task_of(worker) = waiting(count)
    count = count - 1
    call MPI_Send(task_of(worker), 1, MPI_INTEGER8, worker, TASK, MPI_COMM_WORLD, code)
    ! If the worker is lost, we need not know it here: the next receive tells us.
    is_lost = failed(code)
  end subroutine give

  ! Finds the workers that were lost since last time, and gives their tasks to others.
  subroutine look_for_the_lost()
    integer, allocatable :: states(:)   ! of ranks 0, 1, ...
    integer :: worker
    call resurgo_ft_get_attr(MPI_COMM_WORLD, FTMPI_PROC_STATES, states)
    do worker = 1, ranks - 1
      if (lost(worker) .or. states(worker + 1) == FT_PROC_OK) cycle
      lost(worker) = .true.
      living = living - 1
      write (error_unit, '(3(a,i0))') 'ftmpi_master_worker: worker ', worker, ' is lost; ', living, ' are left'
      if (task_of(worker) == NOTHING) cycle
      count = count + 1
      waiting(count) = task_of(worker)
    end do
    do worker = 1, ranks - 1
      call give(worker)
    end do
  end subroutine look_for_the_lost

  subroutine be_master()
    integer(int64) :: done, number, answer(2)   ! a task and its result
    integer :: worker, code
    logical :: is_lost
    type(MPI_Status) :: status
    waiting = [(number, number = tasks, 1, -1)]
    count = tasks
    allocate (hits(tasks), task_of(ranks - 1), lost(ranks - 1))
    hits = NOTHING
    task_of = NOTHING
    lost = .false.
    living = ranks - 1
    do worker = 1, ranks - 1
      call give(worker)
    end do
    done = 0
    do while (done < tasks)
      if (living == 0) then
        answer(1) = waiting(count)
        count = count - 1
        answer(2) = compute(answer(1) - 1)
      else
        call MPI_Recv(answer, 2, MPI_INTEGER8, MPI_ANY_SOURCE, RESULT, MPI_COMM_WORLD, status, code)
        if (failed(code)) then
          call look_for_the_lost()
          cycle
        end if
        ! This may be the last message of a worker that is lost by now. give() sends such a worker nothing.
        task_of(status%MPI_SOURCE) = NOTHING
        call give(status%MPI_SOURCE)
      end if
      ! A lost worker's task goes to another although its result may still arrive. So it may come twice.
      if (hits(answer(1)) == NOTHING) then
        hits(answer(1)) = answer(2)
        done = done + 1
      end if
    end do
    do worker = 1, ranks - 1
      if (lost(worker)) cycle
      call MPI_Send(done, 1, MPI_INTEGER8, worker, STOP_NOW, MPI_COMM_WORLD, code)
      is_lost = failed(code)
    end do
    write (output_unit, '(3(a,i0),a,f0.6)') 'ftmpi_master_worker: ', sum(hits), ' of ', tasks * points, ' points in ', &
      tasks, ' tasks: pi is about ', 4.0_real64 * sum(hits) / (tasks * points)
    flush (output_unit)
  end subroutine be_master

  subroutine be_worker()
    integer(int64) :: answer(2)
    integer :: code
    type(MPI_Status) :: status
    do
      call MPI_Recv(answer, 1, MPI_INTEGER8, MASTER, MPI_ANY_TAG, MPI_COMM_WORLD, status, code)
      if (failed(code)) call without_master()
      if (status%MPI_TAG == STOP_NOW) return
      answer(2) = compute(answer(1) - 1)
      call MPI_Send(answer, 2, MPI_INTEGER8, MASTER, RESULT, MPI_COMM_WORLD, code)
      if (failed(code)) call without_master()
    end do
  end subroutine be_worker

  subroutine without_master()
    write (error_unit, '(a,i0,a)') 'ftmpi_master_worker: rank ', rank, &
      ': the master is lost, and all results with it; the job ends'
    call MPI_Abort(MPI_COMM_WORLD, 3)
  end subroutine without_master

  ! Word `at` of the command line.
  integer(int64) function argument(at, otherwise)
    integer, intent(in) :: at, otherwise
    character(len=32) :: word
    argument = otherwise
    if (command_argument_count() < at) return
    call get_command_argument(at, word)
    read (word, *) argument
  end function argument

end program ftmpi_master_worker
