package local

import (
	"cmp"
	"context"
	"os"
	"time"
)

// Places stands for a machine with other places to look in.
type Places struct {
	Bin, Path              string
	Patterns               []string
	Repository, ArchiveSum string
	Stall                  time.Duration
	Cache, Temp            string
}

// Machine is this machine, with no repository to download from.
func Machine() Places {
	p := machine()
	return Places{Bin: p.bin, Path: p.path, Patterns: p.patterns, ArchiveSum: p.archiveSum, Cache: p.cache}
}

func (p Places) places() places {
	return places{
		bin: p.Bin, path: p.Path, patterns: p.Patterns,
		repository: p.Repository, archiveSum: p.ArchiveSum, stall: cmp.Or(p.Stall, stallTimeout),
		cache: p.Cache, temp: cmp.Or(p.Temp, os.TempDir()),
	}
}

// Find returns the folder of the programs that Start would run.
func (p Places) Find(ctx context.Context, spare string) (string, error) {
	a, err := serverAccount()
	if err != nil {
		return "", err
	}
	b, err := p.places().find(ctx, a, spare)
	return b.folder, err
}

// Start is Start on that machine.
func (p Places) Start(ctx context.Context, o Options) (*Server, error) {
	return start(ctx, o, p.places())
}

// RepositoryOfThisMachine is where Start downloads from.
func RepositoryOfThisMachine() string { return machine().repository }

// Folder is where the server's data, socket and log are.
func (s *Server) Folder() string { return s.folder.path }

// KeeperPID is the process id of the server's keeper.
func (s *Server) KeeperPID() int { return s.keeper.command.Process.Pid }

// Flock locks a folder, and LockData the data folder below one.
var Flock = flock

func LockData(ctx context.Context, path string) (*os.File, error) {
	return (&folder{path: path}).lockData(ctx)
}
