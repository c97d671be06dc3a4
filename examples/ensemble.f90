! SPDX-License-Identifier: Apache-2.0
!
! An ensemble of simulations in teams of two ranks; any rank may be lost at any moment, also rank 0.
!
!   resurgo run --ft -n 4 ./ensemble_f08 [N [CYCLES]]
!
! 12 members compute the weather on a ring of N points (Lorenz 1996), from slightly different beginnings. A team has
! some of the members, and shares the points of each. After 20 steps all teams meet: the members' mean draws each of
! them a little, as observations would. Put your own model into slopes().
!
! - Each team has a communicator of its own. Whoever sees a loss revokes both: its team, and all teams together.
! - Every cycle begins with a checkpoint in memory. After a loss the ranks that are left form teams anew, and share
!   members and points anew; those of a lost rank come from its partner. If both are lost, all begin again.
! - The answer is the same, bit for bit, with any number of ranks and teams.

program ensemble
  use mpi_f08
  use mpi_f08_ext
  use, intrinsic :: iso_c_binding, only: c_loc
  use, intrinsic :: iso_fortran_env, only: real64, error_unit, output_unit
  implicit none

  integer, parameter :: MEMBERS = 12, BLOCKS = 8, EVERY = 20, TEAM_SIZE = 2, EDGE = 2

  type(MPI_Comm) :: comm, team
  integer :: rank, size, seat, seats                ! of all; in my team
  integer :: teams, my_team, n, block, cycles, reached
  integer :: first, last                            ! my team's members are first, ..., last - 1
  integer :: low, high, mine                        ! my blocks of each are low, ..., high - 1, with so many points
  real(real64), allocatable, target :: x(:, :)      ! points of my members, with EDGE more on the left, one on the right
  real(real64), allocatable :: next(:), k1(:), k2(:)
  real(real64) :: mean, spread
  logical :: fine

  call MPI_Init()
  n = argument(1, 240)
  cycles = argument(2, 200)
  block = n / BLOCKS
  team = MPI_COMM_NULL
  ! A communicator of our own. Lost ranks leave messages that nobody receives; in MPI_COMM_WORLD these would make
  ! MPI_Finalize fail. Before this, the loss of a rank ends the job.
  call MPI_Comm_dup(MPI_COMM_WORLD, comm)
  call MPI_Comm_rank(comm, rank)
  call MPI_Comm_size(comm, size)
  if (n < EDGE * BLOCKS .or. mod(n, BLOCKS) /= 0 .or. size > TEAM_SIZE * MEMBERS) then
    if (rank == 0) write (error_unit, '(3(a,i0),a)') 'ensemble: N must be a multiple of ', BLOCKS, ', from ', &
      EDGE * BLOCKS, ' on, and there may be ', TEAM_SIZE * MEMBERS, ' ranks'
    call MPI_Finalize()
    stop 2
  end if
  ! From now on calls return errors. Otherwise the first loss would end the job. Teams get this from comm.
  call MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN)

  call form_teams()
  fine = restore()
  do
    if (fine) fine = save()
    if (.not. all_good(fine)) then
      call shrink()
      call form_teams()
      fine = restore()
      cycle
    end if
    if (reached >= cycles) exit
    if (rank == 0 .and. mod(reached, cycles / 10 + 1) == 0) write (error_unit, '(2(a,i0),a)') 'ensemble: cycle ', reached, &
      ' of ', cycles, ' is saved'
    fine = run_cycle()
  end do

  ! The lowest rank prints. If one is lost meanwhile, it may have been that one: then the next prints again.
  do
    if (rank == 0) then
      write (output_unit, '(3(a,i0),2(a,es22.16e2))') 'ensemble: ', MEMBERS, ' members, ', n, ' points, ', cycles, &
        ' cycles, mean ', mean, ', spread ', spread
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
      if (team /= MPI_COMM_NULL) call MPIX_Comm_revoke(team)
      return
    end if
    call MPI_Error_string(code, text, length)
    write (error_unit, '(2a)') 'ensemble: ', text(:length)
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

  ! ---- Teams. ----

  ! A communicator counts when all ranks agree that it is there: a loss may leave some with it and others without.
  subroutine form_teams()
    integer :: code
    do
      if (team /= MPI_COMM_NULL) call MPI_Comm_free(team)
      team = MPI_COMM_NULL
      teams = max(1, size / TEAM_SIZE)
      my_team = rank * teams / size
      call MPI_Comm_split(comm, my_team, rank, team, code)
      fine = good(code)
      if (all_good(fine)) exit
      call shrink()
    end do
    call MPI_Comm_rank(team, seat)
    call MPI_Comm_size(team, seats)
  end subroutine form_teams

  ! ---- Checkpoints. ----

  logical function save()
    integer :: code
    call resurgo_ft_checkpoint(comm, reached, RESURGO_FT_PARTNER, 1, code)
    save = good(code)
  end function save

  ! Shares members and points, and fills them: from the last checkpoint, or as they are at first.
  logical function restore()
    integer :: member, at, code
    logical :: is_new
    first = my_team * MEMBERS / teams
    last = (my_team + 1) * MEMBERS / teams
    low = seat * BLOCKS / seats
    high = (seat + 1) * BLOCKS / seats
    mine = (high - low) * block
    if (allocated(x)) deallocate (x, next, k1, k2)
    allocate (x(1 - EDGE:mine + 1, first:last - 1), next(1 - EDGE:mine + 1), k1(mine), k2(mine))
    ! Each block of each member has a number of its own, whichever rank it belongs to.
    call resurgo_ft_unprotect(RESURGO_FT_ALL)
    do member = first, last - 1
      do at = low, high - 1
        call resurgo_ft_protect(member * BLOCKS + at, c_loc(x((at - low) * block + 1, member)), block, &
          MPI_DOUBLE_PRECISION)
      end do
      do at = 1, mine
        x(at, member) = 8.0_real64 + 0.01_real64 * mod(7 * (low * block + at - 1) + 13 * member, 17)
      end do
    end do
    call resurgo_ft_restore(comm, reached, code)
    is_new = code == RESURGO_FT_NOTHING .or. code == RESURGO_FT_LOST
    restore = is_new
    if (.not. is_new) restore = good(code)
    if (.not. restore) return
    if (is_new) reached = 0
    if (rank == 0) write (error_unit, '(3(a,i0))') 'ensemble: ', size, ' ranks in ', teams, &
      ' teams go on from cycle ', reached
  end function restore

  ! ---- The model. Each function tells whether all calls of MPI have succeeded. ----

  ! How fast each point changes; it depends on neighbours, also of the next ranks on the ring.
  logical function slopes(x, slope)
    real(real64), intent(inout) :: x(1 - EDGE:)
    real(real64), intent(out) :: slope(:)
    integer :: left, right, at, code
    left = mod(seat + seats - 1, seats)
    right = mod(seat + 1, seats)
    call MPI_Sendrecv(x(mine - EDGE + 1:mine), EDGE, MPI_DOUBLE_PRECISION, right, 1, x(1 - EDGE:0), EDGE, &
      MPI_DOUBLE_PRECISION, left, 1, team, MPI_STATUS_IGNORE, code)
    slopes = good(code)
    if (.not. slopes) return
    call MPI_Sendrecv(x(1:1), 1, MPI_DOUBLE_PRECISION, left, 2, x(mine + 1:mine + 1), 1, MPI_DOUBLE_PRECISION, right, &
      2, team, MPI_STATUS_IGNORE, code)
    slopes = good(code)
    if (.not. slopes) return
    do at = 1, mine
      slope(at) = (x(at + 1) - x(at - 2)) * x(at - 1) - x(at) + 8.0_real64
    end do
  end function slopes

  logical function forecast(member)
    integer, intent(in) :: member
    integer :: step
    do step = 1, EVERY
      forecast = slopes(x(:, member), k1)
      if (.not. forecast) return
      next(1:mine) = x(1:mine, member) + 0.01_real64 * k1
      forecast = slopes(next, k2)
      if (.not. forecast) return
      x(1:mine, member) = x(1:mine, member) + 0.005_real64 * (k1 + k2)
    end do
  end function forecast

  ! All members meet. What other ranks have is zero here, so that the sums are exact.
  logical function meet()
    real(real64), allocatable :: all(:, :)
    real(real64) :: total, squares, apart
    integer :: member, at, own, code
    allocate (all(n, 0:MEMBERS - 1))
    all = 0
    do member = first, last - 1
      all(low * block + 1:high * block, member) = x(1:mine, member)
    end do
    call MPI_Allreduce(MPI_IN_PLACE, all, MEMBERS * n, MPI_DOUBLE_PRECISION, MPI_SUM, comm, code)
    meet = good(code)
    if (.not. meet) return
    mean = 0
    spread = 0
    do at = 1, n
      total = 0
      squares = 0
      do member = 0, MEMBERS - 1
        total = total + all(at, member)
      end do
      total = total / MEMBERS
      do member = 0, MEMBERS - 1
        apart = all(at, member) - total
        squares = squares + apart * apart
      end do
      mean = mean + total
      spread = spread + squares
      own = at - low * block
      if (own < 1 .or. own > mine) cycle
      do member = first, last - 1
        x(own, member) = x(own, member) + 0.1_real64 * (total - x(own, member))
      end do
    end do
    mean = mean / n
    spread = sqrt(spread / (MEMBERS * n))
  end function meet

  logical function run_cycle()
    integer :: member
    do member = first, last - 1
      run_cycle = forecast(member)
      if (.not. run_cycle) return
    end do
    reached = reached + 1
    run_cycle = meet()
  end function run_cycle

  ! Word `at` of the command line.
  integer function argument(at, otherwise)
    integer, intent(in) :: at, otherwise
    character(len=32) :: word
    argument = otherwise
    if (command_argument_count() < at) return
    call get_command_argument(at, word)
    read (word, *) argument
  end function argument

end program ensemble
