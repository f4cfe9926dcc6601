package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Resident is the memory of a program that is in the machine's, in MB. Where the
// system has no /proc it is zero.
type Resident struct {
	Start float64 `json:"start_mb"`
	End   float64 `json:"end_mb"`
	Peak  float64 `json:"peak_mb"`
}

// resident reads how much of a program's memory is in the machine's, and how much
// was at most.
func resident(pid int) (now, peak float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0
	}
	return megabytes(text, "VmRSS:"), megabytes(text, "VmHWM:")
}

// megabytes is a line of the kernel's status, which counts in kB.
func megabytes(status []byte, name string) float64 {
	_, after, _ := bytes.Cut(status, []byte("\n"+name))
	line, _, _ := bytes.Cut(after, []byte(" kB"))
	kilobytes, _ := strconv.ParseFloat(string(bytes.TrimSpace(line)), 64) // the kernel writes numbers
	return kilobytes / 1024
}

// residents begins to look at a program. What it returns is asked before the
// program ends.
func residents(pid int) func() Resident {
	start, _ := resident(pid)
	return func() Resident {
		end, peak := resident(pid)
		return Resident{Start: start, End: end, Peak: peak}
	}
}
