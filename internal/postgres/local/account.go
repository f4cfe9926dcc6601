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

// account is who the server runs as: ourselves, or, since PostgreSQL refuses
// root, postgres or nobody where we are root.
type account struct {
	uid, gid   int
	credential *syscall.Credential // nil: ourselves
}

// serverAccount picks the account.
func serverAccount() (account, error) {
	if os.Getuid() != 0 {
		return account{uid: os.Getuid(), gid: os.Getgid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseInt(found.Uid, 10, 64)
		if err != nil {
			return account{}, fmt.Errorf("read the user id of %s: %w", name, err)
		}
		gid, err := strconv.ParseInt(found.Gid, 10, 64)
		if err != nil {
			return account{}, fmt.Errorf("read the group id of %s: %w", name, err)
		}
		// Some systems print nobody's id as -2, others as 4294967294.
		return account{
			uid: int(uint32(uid)), gid: int(uint32(gid)),
			credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
		}, nil
	}
	return account{}, errors.New("PostgreSQL refuses to run as root and this machine has no user postgres or nobody: add one or run as an ordinary user")
}

// command runs a program as the account. Its folder is the root folder, since
// ours may be closed to the account, and it sees no PG* variable: those are
// meant for clients of other servers.
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

// give makes the account the owner of path.
func (a account) give(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// owns says whether a file is the account's or ours.
func (a account) owns(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (int(stat.Uid) == a.uid || int(stat.Uid) == os.Getuid())
}
