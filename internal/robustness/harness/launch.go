package harness

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
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

// launch starts a life of a program, which dies with this process.
func launch(program Program, addr string) (*life, error) {
	path, err := exec.LookPath(program.Path)
	if err != nil {
		return nil, err
	}
	// The context of a start bounds the start, not the life of the program.
	args := append([]string{"-c", leash, "sh", path}, program.Args...)
	command := exec.Command("/bin/sh", args...)                   //nolint:noctx // see above
	command.Env = append(environ(program.Env), "HTTP_ADDR="+addr) // the last one counts
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	for suffix, stream := range map[string]*io.Writer{".log": &command.Stderr, ".stdout": &command.Stdout} {
		file, err := os.OpenFile(program.file(suffix), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
		defer func() { _ = file.Close() }() // the program has its own
		*stream = file
	}
	watch, hold, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open pipe to watcher: %w", err)
	}
	defer func() { _ = watch.Close() }()
	command.ExtraFiles = []*os.File{watch}
	if err := command.Start(); err != nil {
		_ = hold.Close()
		return nil, err
	}
	if program.Started != nil {
		program.Started(command.Process.Pid)
	}
	l := &life{command: command, exited: make(chan struct{})}
	go func() {
		l.err = command.Wait()
		_ = endLog(program.file(".log"))
		_, _ = hold.WriteString("\n") // the error of a watcher that has ended already is EPIPE
		_ = hold.Close()
		close(l.exited)
	}()
	return l, nil
}

// endLog takes the line away that a kill has cut: the next life would go on in it.
func endLog(path string) error {
	log, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, int64(bytes.LastIndexByte(log, '\n')+1))
}
