package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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
			if p, ok := readProcess(pid); ok {
				u.Programs += p.own
			}
		}
		return u
	}
}

// process is a line of /proc/PID/stat.
type process struct {
	parent   int
	own      time.Duration
	children time.Duration // of those that have ended and were waited for
}

// family is what a process, its children, and the children that it had, have used.
// A session that ends meanwhile is counted by its parent.
func family(pid int) time.Duration {
	parent, ok := readProcess(pid)
	if !ok {
		return 0
	}
	sum := parent.own + parent.children
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return sum
	}
	for _, stat := range stats {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err != nil {
			continue
		}
		if p, ok := readProcess(child); ok && p.parent == pid {
			sum += p.own
		}
	}
	return sum
}

// tick is the unit of /proc, which is the same on all systems that have one.
const tick = time.Second / 100

func readProcess(pid int) (process, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	_, rest, ok := bytes.Cut(text, []byte(") ")) // the name before it may hold anything but this
	fields := strings.Fields(string(rest))
	if !ok || len(fields) < 15 {
		return process{}, false
	}
	ticks := func(at int) time.Duration {
		n, _ := strconv.ParseInt(fields[at], 10, 64) // the kernel writes numbers
		return time.Duration(n) * tick
	}
	parent, _ := strconv.Atoi(fields[1])
	return process{parent: parent, own: ticks(11) + ticks(12), children: ticks(13) + ticks(14)}, true
}
