package e2e_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testrun"
)

// TestDisk_thatIsFullLosesNothing fills the disk of the database under load, and frees it. The
// disk is in a mount namespace, which ends with its last process.
func TestDisk_thatIsFullLosesNothing(t *testing.T) {
	disk := os.Getenv("SMALL_DISK")
	if disk == "" {
		t.Parallel()
		onSmallDisk(t)
		return
	}
	c := &cluster{synchronous: true, user: "postgres", primary: &node{}} // alone: nothing that it accepted may be lost
	elsewhere := os.TempDir()
	t.Setenv("TMPDIR", disk) // where the server has its files
	server, err := local.Start(t.Context(), local.Options{Fsync: true, Settings: map[string]string{"max_wal_size": "64MB"}})
	must(t, err)
	t.Setenv("TMPDIR", elsewhere)
	c.closeAtEnd(t, server)
	c.primary.server, c.primary.link = server, newLink(t, server)
	c.hosts = c.primary.link.Address()
	c.primary.connect(t, server.URL("postgres"))
	w := newUnderLoad(t, c)
	filler := filepath.Join(disk, "filler")
	w.lose(t, 1, func() {
		file, err := os.Create(filler)
		must(t, err)
		testrun.True(t, "charges are answered 503", func() bool {
			for err == nil { // also what a checkpoint has freed since
				_, err = file.Write(make([]byte, 4<<10))
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			err = nil
			return strings.Contains(fetch(t, w.APIs[0].URL()+"/metrics"), `route="/v1/charges",status="503"`)
		})
		must(t, errors.Join(file.Close(), os.Remove(filler)))
		if conn, err := pgx.Connect(t.Context(), server.URL("postgres")); err == nil {
			must(t, conn.Close(t.Context()))
		} else { // a server that cannot write its log ends
			t.Logf("the server is started again: %v", err)
			must(t, server.Restart(t.Context()))
		}
		c.primary.connect(t, server.URL("postgres"))
	}, nil)
	w.settle(t)
}

func onSmallDisk(t *testing.T) {
	t.Helper()
	startsWithEvery(t, "it loses the server of its own database, as TestSoak does")
	if out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt").CombinedOutput(); err != nil {
		t.Skipf("not run: this machine mounts no disk of its own: %v %s", err, out)
	}
	test := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", `mount -t tmpfs -o mode=1777,size=160m none /mnt && exec "$0" "$@"`,
		os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	test.Env = append(os.Environ(), "SMALL_DISK=/mnt", programsVariable+"="+filepath.Dir(binaries(t).API))
	out, err := test.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Error(err)
	}
}
