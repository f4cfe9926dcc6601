package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// account is the user that the server runs as. PostgreSQL refuses root, so for root it
// is the user postgres or an unprivileged one.
type account struct {
	credential *syscall.Credential // nil: the user of this process
}

func serverAccount() (account, error) {
	if os.Getuid() != 0 {
		return account{}, nil
	}
	found, err := user.Lookup("postgres")
	if err != nil {
		found, err = user.Lookup("nobody")
	}
	if err != nil {
		return account{}, errors.New("PostgreSQL refuses to run as root and this machine has no user postgres or nobody: add one or run as an ordinary user")
	}
	// Some systems print the id of the unprivileged user as -2, others as 4294967294.
	uid, badUID := strconv.ParseInt(found.Uid, 10, 64)
	gid, badGID := strconv.ParseInt(found.Gid, 10, 64)
	if err := cmp.Or(badUID, badGID); err != nil {
		return account{}, fmt.Errorf("read the ids of the user %s: %w", found.Username, err)
	}
	return account{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// command is a program that runs as the account, in the root folder, which every account
// may enter. It sees no PG* variable: those are for clients of other servers. Its session
// is its own, so the terminal's Ctrl-C does not reach it.
func (a account) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = "/"
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") {
			c.Env = append(c.Env, variable)
		}
	}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential, Setsid: true}
	return c
}

// run runs a program to its end. The error quotes the end of what it printed, on one line.
func (a account) run(ctx context.Context, name string, args ...string) error {
	if out, err := a.command(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w: %s", name, err, lastLines(out))
	}
	return nil
}

// uid is the account's user id.
func (a account) uid() int {
	if a.credential == nil {
		return os.Getuid()
	}
	return int(a.credential.Uid)
}

// give makes the account the owner of a path.
func (a account) give(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, a.uid(), int(a.credential.Gid))
}

// mayWrite reports whether the account can make folders in one of ours.
func (a account) mayWrite(ctx context.Context, folder string) bool {
	return a.run(ctx, "/bin/sh", "-c", `test -w "$1" && test -x "$1"`, "sh", folder) == nil
}

func lastLines(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], "; ")
}
