package local

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// script is the keeper: it fills the data folder where there is a template, starts the
// server and waits on its standard input, which is a pipe from the starter. The end of the
// pipe means that the starter has ended, however it ended: the keeper then stops the
// server and removes the folder. A line on the pipe is a signal for the server, after
// which the keeper ends and the folder stays.
//
// File 3 is the folder's lock, which the server must not hold; file 4 is the lock of the
// data folder, which only the server must hold. Shells start background programs with INT
// and QUIT ignored, so a QUIT that comes before the server has installed its handlers is
// lost: TERM ends it there, and QUIT later on.
const script = `dir=$1
template=$2
shift 2
exec >>"$dir/log" 2>&1
if [ -n "$template" ]; then
	cp -R "$template/." "$dir/data"
fi
"$@" </dev/null 3<&- &
server=$!
trap '' INT TERM HUP
exec 4<&-
if read -r signal; then
	kill -s "$signal" "$server"
	wait "$server"
else
	kill -s TERM "$server"
	kill -s QUIT "$server"
	wait "$server"
	cd / && rm -rf "$dir"
fi`

// keeper is a running keeper.
type keeper struct {
	command *exec.Cmd
	pipe    *os.File
	ended   chan struct{} // closed when it has ended
}

// keep starts a keeper, and through it the server. An empty template means that the data
// folder is full.
func keep(ctx context.Context, a account, f *folder, template string, server []string) (*keeper, error) {
	held, err := lock(ctx, f.data())
	if err != nil {
		return nil, err
	}
	defer func() { _ = held.Close() }() // the keeper has a copy
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Close() }()
	// Only the pipe ends the keeper, so it outlives ctx. In a session of its own it does
	// not get the terminal's Ctrl-C.
	c := a.command(context.WithoutCancel(ctx), "/bin/sh", append([]string{"-c", script, "sh", f.path, template}, server...)...)
	c.Stdin = read
	c.ExtraFiles = []*os.File{f.lock, held}
	c.SysProcAttr.Setsid = true
	if err := c.Start(); err != nil {
		_ = write.Close()
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	k := &keeper{c, write, make(chan struct{})}
	go func() {
		defer close(k.ended)
		_ = c.Wait() // the log says more than the exit status
	}()
	return k, nil
}

// stop sends the server a signal and waits until it and the keeper have ended. An empty
// signal stops the server and removes the folder. stop may be called again after an error.
func (k *keeper) stop(ctx context.Context, signal string) error {
	if signal != "" {
		_, _ = k.pipe.WriteString(signal + "\n") // a keeper that was killed cannot read it
	}
	_ = k.pipe.Close()
	select {
	case <-k.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the keeper to end: %w", context.Cause(ctx))
	}
}
