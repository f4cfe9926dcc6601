package pgtest

import (
	"flag"
	"runtime"
	"strconv"
)

// overlap is how many tests of a package run at a time on few processors.
const overlap = 6

// Overlap lets more parallel tests of a package run at a time than there are
// processors: what they mostly do is wait, for the database and for each other. It
// is for TestMain, before the tests run; whoever says -parallel has it his way.
func Overlap() {
	if parallel := flag.Lookup("test.parallel"); parallel != nil {
		_ = parallel.Value.Set(strconv.Itoa(max(overlap, runtime.GOMAXPROCS(0)))) // a number it takes
	}
}
