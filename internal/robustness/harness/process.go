// Package harness runs payonce as its operators and merchants do: it builds the real programs,
// starts them as child processes on a database, sends requests, drives the sandbox, and reads
// the audit. The demo, the benchmarks and the tests that kill programs use it. It sees the
// service from outside and imports none of its packages, so it cannot share a mistake with them.
//
// The process that it signals is the program itself. A program has exactly the
// environment that it was given, and keeps its address through restarts. No program
// outlives this process, however this process ends. A program has a session of its
// own: the terminal's Ctrl-C reaches only this process, which then stops the programs
// in order.
//
// The package does not restart a program that ends, and it needs /bin/sh.
//
// Tests, the demo and bench share it, so it is a part of none, and no library knows the programs.
package harness

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is a program that was started, through all its restarts. Its methods
// are safe for concurrent use.
type Process struct {
	program Program
	addr    string

	mu   sync.Mutex
	life *life
}

// life is one run of the program, from start to exit.
type life struct {
	command *exec.Cmd
	exited  chan struct{}
	err     error // set before exited is closed
}

// Start starts a program and returns when it has logged the address on which it
// listens, in the slog line "listening" with the attribute "addr". The context
// bounds that wait only: the process lives until it is stopped or killed, or
// this process ends. The error of a program that ends before it listens holds
// the end of its log.
func Start(ctx context.Context, program Program) (*Process, error) {
	p := &Process{program: program}
	var err error
	if p.life, p.addr, err = p.start(ctx, cmp.Or(program.Env["HTTP_ADDR"], "127.0.0.1:0")); err != nil {
		return nil, fmt.Errorf("start %s: %w\n%s", program.Name, err, p.Tail())
	}
	return p, nil
}

var errPortTaken = errors.New("port taken")

// start starts a life and returns the address that it logs.
func (p *Process) start(ctx context.Context, addr string) (*life, string, error) {
	earlier, _ := os.ReadFile(p.program.file(".log")) // there is none before the first life
	l, err := launch(p.program, addr)
	if err != nil {
		return nil, "", err
	}
	const pause = 5 * time.Millisecond // between two looks into the log
	for {
		ended := l.ended()
		text, _ := os.ReadFile(p.program.file(".log")) // launch has made it
		text = text[min(len(earlier), len(text)):]
		if at := addressIn(text); at != "" && !ended {
			return l, at, nil
		}
		switch {
		case ended && bytes.Contains(text, []byte("address already in use")):
			return nil, "", errPortTaken
		case ended:
			return nil, "", fmt.Errorf("ended before it listened: %s", l.command.ProcessState)
		case Wait(ctx, pause) != nil:
			_ = l.command.Process.Kill()
			<-l.exited
			return nil, "", fmt.Errorf("not listening: %w", ctx.Err())
		}
	}
}

// addressIn is the address in a log, or empty while there is none.
func addressIn(log []byte) string {
	for line := range bytes.Lines(log) {
		var entry struct {
			Message string `json:"msg"`
			Addr    string `json:"addr"`
		}
		if json.Unmarshal(line, &entry) == nil && entry.Message == "listening" && entry.Addr != "" {
			return entry.Addr
		}
	}
	return ""
}

func (l *life) ended() bool {
	select {
	case <-l.exited:
		return true
	default:
		return false
	}
}

// Name is the program's name.
func (p *Process) Name() string { return p.program.Name }

// URL is where the program answers. It stays the same through restarts.
func (p *Process) URL() string { return "http://" + p.addr }

// PID is the program's own process id, in its present or last life.
func (p *Process) PID() int { return p.now().command.Process.Pid }

// Exited is closed when the present life of the program ends, however it ends.
// After a restart there is a new channel.
func (p *Process) Exited() <-chan struct{} { return p.now().exited }

func (p *Process) now() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life
}

// Kill sends SIGKILL and waits until the program is gone. It returns
// os.ErrProcessDone for a program that had already ended.
func (p *Process) Kill() error {
	l := p.now()
	if err := p.signal(l, syscall.SIGKILL); err != nil {
		return err
	}
	<-l.exited
	return nil
}

// Stop sends SIGTERM, also to a paused program, and waits for the end. When
// ctx ends first it kills. An exit code other than 0 is an error; a program
// that had already ended is not.
func (p *Process) Stop(ctx context.Context) error {
	l := p.now()
	if err := p.signal(l, syscall.SIGTERM); errors.Is(err, os.ErrProcessDone) {
		return nil
	} else if err != nil {
		return err
	}
	_ = p.signal(l, syscall.SIGCONT) // fails only if it has ended by now
	select {
	case <-l.exited:
	case <-ctx.Done():
		_ = l.command.Process.Kill()
		<-l.exited
		return fmt.Errorf("stop %s: had to be killed: %w\n%s", p.program.Name, ctx.Err(), p.Tail())
	}
	if l.err != nil {
		return fmt.Errorf("stop %s: %w\n%s", p.program.Name, l.err, p.Tail())
	}
	return nil
}

// Pause sends SIGSTOP: the program keeps its connections, locks and leases and
// does nothing until Resume. Its threads stop one after another, shortly after
// Pause has returned.
func (p *Process) Pause() error { return p.signal(p.now(), syscall.SIGSTOP) }

// Resume sends SIGCONT.
func (p *Process) Resume() error { return p.signal(p.now(), syscall.SIGCONT) }

func (p *Process) signal(l *life, s syscall.Signal) error {
	err := l.command.Process.Signal(s)
	if err == nil {
		return nil
	}
	if errors.Is(err, os.ErrProcessDone) {
		<-l.exited // its log is whole only then
	}
	return fmt.Errorf("signal %s: %w", p.program.Name, err)
}

// Restart stops the program if it runs and starts it on the address that it had.
// In between the system may give its port to an outgoing connection, so a start that
// fails for that reason is retried until ctx ends.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	const pause = 100 * time.Millisecond // between two attempts to listen on a port that is taken
	for {
		life, _, err := p.start(ctx, p.addr)
		if err == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.life = life
			return nil
		}
		if !errors.Is(err, errPortTaken) || Wait(ctx, pause) != nil {
			return fmt.Errorf("start %s: %w\n%s", p.program.Name, err, p.Tail())
		}
	}
}

// WaitReady waits until the program answers its readiness path with 200, or ctx
// ends, or the program does.
func (p *Process) WaitReady(ctx context.Context) error {
	const pause = 20 * time.Millisecond
	l, client := p.now(), &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL()+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		if got, err := Exchange(client, request); err == nil && got.Status == http.StatusOK {
			return nil
		}
		if l.ended() {
			return fmt.Errorf("wait for %s: ended: %s\n%s", p.program.Name, l.command.ProcessState, p.Tail())
		}
		if Wait(ctx, pause) != nil {
			return fmt.Errorf("wait for %s: not ready: %w\n%s", p.program.Name, ctx.Err(), p.Tail())
		}
	}
}
