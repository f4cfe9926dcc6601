package local

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// dataFolder is the name of a server's data below its folder.
const dataFolder = "data"

// guard is the cleanup script, which removes the folder. Programs that end at the same moment
// may still write to the folder, so the script tries to remove it for some seconds.
const guard = `trap '' HUP INT TERM
read -r end
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	read -r server <"$1/` + dataFolder + `/postmaster.pid" && kill -s QUIT "$server"
	rm -rf "$1" && exit
	sleep 0.5
done 2>/dev/null`

// Dir is a temporary folder that does not outlive its process, however that ends.
//
// A shell runs a cleanup script, which waits on a pipe from the process. When the pipe ends,
// the script stops the PostgreSQL server in the folder, if there is one, and removes the
// folder. If the script is killed too, the next NewDir removes the folder, whose lock no process
// holds any more; a server in it ends within a minute, when it finds its data gone.
type Dir struct {
	Path string

	lock  *os.File // held by this process and the cleanup script
	guard *exec.Cmd
	pipe  io.Closer
}

// NewDir makes a folder whose name begins with prefix, which only this user can enter. It
// removes the folders with this prefix in parent whose processes have ended.
func NewDir(parent, prefix string) (*Dir, error) {
	left, _ := fs.Glob(os.DirFS(parent), prefix+"*") // a constant, so never malformed
	for _, name := range left {
		path := filepath.Join(parent, name)
		if held, err := lock(path, syscall.LOCK_NB); err == nil {
			_ = os.RemoveAll(path) // what cannot be removed is left to the next NewDir
			_ = held.Close()
		}
	}
	for {
		path, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return nil, err
		}
		held, err := lock(path, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process removed it before it was locked
		}
		d := &Dir{Path: path, lock: held}
		if err == nil {
			err = d.startGuard()
		}
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(path), held.Close())
		}
		return d, nil
	}
}

// startGuard starts the cleanup script in a session of its own, which Ctrl-C in the terminal does
// not reach.
func (d *Dir) startGuard() (err error) {
	d.guard = exec.Command("/bin/sh", "-c", guard, "sh", d.Path) //nolint:noctx // it outlives every context
	d.guard.Dir = "/"
	d.guard.ExtraFiles = []*os.File{d.lock}
	d.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if d.pipe, err = d.guard.StdinPipe(); err != nil {
		return err
	}
	return d.guard.Start()
}

// Close removes the folder. No process may use it any more.
func (d *Dir) Close() error {
	err := errors.Join(os.RemoveAll(d.Path), d.pipe.Close(), d.lock.Close())
	_ = d.guard.Wait() // it may have been killed
	return err
}

// lock locks a folder until the returned file and its copies in other processes are closed.
func lock(path string, flags int) (*os.File, error) {
	folder, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|flags)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	return folder, nil
}
