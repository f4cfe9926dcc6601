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
	return func() usage {
		u := usage{Database: family(postmaster)}
		for _, pid := range programs {
			u.Programs += own(pid)
		}
		return u
	}
}

// tick is the unit of /proc, which is the same on all systems that have one.
const tick = time.Second / 100

func own(pid int) time.Duration {
	stat, err := statOf(pid)
	if err != nil {
		return 0
	}
	return time.Duration(stat.UTime+stat.STime) * tick
}

func statOf(pid int) (procfs.ProcStat, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return process.Stat()
}

// family is what a process, its children, and the children that it had, have used. A
// session that ends meanwhile is counted by its parent.
func family(pid int) time.Duration {
	parent, err := statOf(pid)
	if err != nil {
		return 0
	}
	sum := parent.UTime + parent.STime + uint(parent.CUTime) + uint(parent.CSTime) //nolint:gosec // times are not negative
	processes, _ := procfs.AllProcs()
	for _, process := range processes {
		if child, err := process.Stat(); err == nil && child.PPID == pid {
			sum += child.UTime + child.STime
		}
	}
	return time.Duration(sum) * tick //nolint:gosec // a few hours
}

// Resident is a program's resident memory, in MB. Where the system has no /proc it is
// zero.
type Resident struct {
	Start float64 `json:"start_mb"`
	End   float64 `json:"end_mb"`
	Peak  float64 `json:"peak_mb"`
}

// residents begins to watch a program. What it returns is called before the program
// ends.
func residents(pid int) func() Resident {
	status := func() procfs.ProcStatus {
		process, err := procfs.NewProc(pid)
		if err != nil {
			return procfs.ProcStatus{}
		}
		status, _ := process.NewStatus()
		return status
	}
	const megabyte = 1 << 20
	start := status()
	return func() Resident {
		end := status()
		return Resident{Start: float64(start.VmRSS) / megabyte, End: float64(end.VmRSS) / megabyte, Peak: float64(end.VmHWM) / megabyte}
	}
}
