package fleet

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// leash runs before the program in the program's own process: it leaves a
// watcher behind and then becomes the program, so that the child's pid is the
// program's. The watcher reads a pipe whose other end is held by the parent
// alone. A line releases it; the end of the pipe means that the parent is
// gone, and the program's whole process group is killed. There is no moment in
// which the program runs unwatched; and since the watcher belongs to that
// group, the number cannot have passed to another process.
const leash = `(trap '' HUP INT TERM; read -r released <&3 || kill -s KILL -- -$$) </dev/null >/dev/null 2>&1 &
exec "$@" 3<&-`

// leashed is a command that dies with this process. The caller starts it with
// start, waits for it, and calls release after the wait.
type leashed struct {
	*exec.Cmd

	watch *os.File
	hold  *os.File
	once  sync.Once
}

func newLeashed(path string, args ...string) (*leashed, error) {
	program, err := exec.LookPath(path)
	if err != nil {
		return nil, fmt.Errorf("find program: %w", err)
	}
	watch, hold, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open pipe to watcher: %w", err)
	}
	// The context of a start bounds the start, not the life of the program.
	cmd := exec.Command("/bin/sh", append([]string{"-c", leash, "sh", program}, args...)...) //nolint:noctx // see above
	cmd.ExtraFiles = []*os.File{watch}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return &leashed{Cmd: cmd, watch: watch, hold: hold}, nil
}

// start starts the command and closes the watcher's end of the pipe.
func (l *leashed) start() error {
	err := l.Start()
	_ = l.watch.Close()
	if err != nil {
		l.release()
	}
	return err
}

// release ends the watcher.
func (l *leashed) release() {
	l.once.Do(func() {
		// The error of a watcher that has ended already is EPIPE.
		_, _ = l.hold.WriteString("\n")
		_ = l.hold.Close()
	})
}

// kill sends SIGKILL to the command and to everything it started. It is called
// before release.
func (l *leashed) kill() error {
	return syscall.Kill(-l.Process.Pid, syscall.SIGKILL)
}
