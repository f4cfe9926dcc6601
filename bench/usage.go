package main

import (
	"time"

	"github.com/prometheus/procfs"
)

// usage is processor time. Where the system has no /proc it is zero.
type usage struct {
	Programs time.Duration `json:"programs"`
	Database time.Duration `json:"database"`
}

func (u usage) minus(v usage) usage {
	return usage{Programs: u.Programs - v.Programs, Database: u.Database - v.Database}
}

// users reads what programs and the server have used since they were started.
func users(postmaster int, programs ...int) func() usage {
	return func() usage { return usage{Programs: own(programs...), Database: family(postmaster)} }
}

// tick is the unit of /proc, which is the same on all systems that have one.
const tick = time.Second / 100

// own is what processes have used, without their children.
func own(pids ...int) (sum time.Duration) {
	for _, pid := range pids {
		if process, err := procfs.NewProc(pid); err == nil {
			stat, _ := process.Stat()                          // zero for a process that has ended
			sum += time.Duration(stat.UTime+stat.STime) * tick //nolint:gosec // a few hours
		}
	}
	return sum
}

// family is what a process, its children, and the children that it had, have used. A
// session that ends meanwhile is counted by its parent.
func family(pid int) time.Duration {
	sum := own(pid)
	processes, _ := procfs.AllProcs()
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil {
			continue
		}
		if stat.PPID == pid {
			sum += own(stat.PID)
		} else if stat.PID == pid {
			sum += time.Duration(stat.CUTime+stat.CSTime) * tick
		}
	}
	return sum
}

// Resident is a program's resident memory, in MB. Where the system has no /proc it is
// zero.
type Resident struct {
	End  float64 `json:"end_mb"`
	Peak float64 `json:"peak_mb"`
}

// resident is read before the program ends.
func resident(pid int) Resident {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return Resident{}
	}
	status, _ := process.NewStatus() // zero for a program that has ended
	const megabyte = 1 << 20
	return Resident{End: float64(status.VmRSS) / megabyte, Peak: float64(status.VmHWM) / megabyte}
}
