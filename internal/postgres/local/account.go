package local

import (
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
// is the user postgres or nobody.
type account struct {
	credential *syscall.Credential // nil: the user of this process
}

func serverAccount() (account, error) {
	if os.Getuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		// Some systems print the id of nobody as -2, others as 4294967294.
		uid, badUID := strconv.ParseInt(found.Uid, 10, 64)
		gid, badGID := strconv.ParseInt(found.Gid, 10, 64)
		if err := errors.Join(badUID, badGID); err != nil {
			return account{}, fmt.Errorf("read the ids of the user %s: %w", name, err)
		}
		return account{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return account{}, errors.New("PostgreSQL refuses to run as root and this machine has no user postgres or nobody: add one or run as an ordinary user")
}

// command runs a program as the account, in the root folder, which every account may
// enter. It sees no PG* variable: those are for clients of other servers.
func (a account) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = "/"
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") {
			c.Env = append(c.Env, variable)
		}
	}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential}
	return c
}

// uid is the account's user id.
func (a account) uid() int {
	if a.credential == nil {
		return os.Getuid()
	}
	return int(a.credential.Uid)
}

// give makes the account the owner of path.
func (a account) give(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, a.uid(), int(a.credential.Gid))
}

// owns reports whether a file belongs to the account or to the user of this process.
func (a account) owns(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (int(stat.Uid) == os.Getuid() || int(stat.Uid) == a.uid())
}

// mayWrite reports whether the account can make folders in one of ours.
func (a account) mayWrite(ctx context.Context, folder string) bool {
	return a.command(ctx, "/bin/sh", "-c", `test -w "$1" && test -x "$1"`, "sh", folder).Run() == nil
}

// runCommand runs a program. The error quotes the end of what it printed, on one line.
func runCommand(c *exec.Cmd) error {
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w: %s", c.Path, err, lastLines(out))
	}
	return nil
}

func lastLines(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], "; ")
}
