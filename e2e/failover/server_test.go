package failover_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// alone is a cluster of one server, which has variables of its own. Nothing that it accepted may
// be lost.
func alone(t *testing.T, o local.Options, environ map[string]string) *cluster {
	t.Helper()
	c := &cluster{synchronous: true, user: "postgres", primary: &node{}}
	t.Run("start the server", func(t *testing.T) {
		for name, value := range environ {
			t.Setenv(name, value)
		}
		var err error
		c.primary.server, err = local.Start(t.Context(), o)
		must(t, err)
	})
	if t.Failed() {
		t.FailNow()
	}
	c.closeAtEnd(t, c.primary.server)
	c.primary.link = newLink(t, c.primary.server)
	c.hosts = c.primary.link.Address()
	c.primary.connect(t, c.primary.server.URL("postgres"))
	return c
}

// TestDisk_thatIsFullLosesNothing fills the disk of the database under load, and frees it. The
// disk is in a mount namespace, which ends with its last process.
func TestDisk_thatIsFullLosesNothing(t *testing.T) { //nolint:paralleltest // in the namespace it is alone
	disk := os.Getenv("SMALL_DISK")
	if disk == "" {
		t.Parallel()
		onSmallDisk(t)
		return
	}
	c := alone(t, local.Options{Fsync: true, Settings: map[string]string{"max_wal_size": "64MB"}}, map[string]string{"TMPDIR": disk})
	w := newWorld(t, build(t), c)
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
			return strings.Contains(answer(t, strings.TrimPrefix(w.APIs[0].URL(), "http://")+"/metrics"), `route="/v1/charges",status="503"`)
		})
		must(t, errors.Join(file.Close(), os.Remove(filler)))
		if conn, err := pgx.Connect(t.Context(), c.primary.server.URL("postgres")); err == nil {
			must(t, conn.Close(t.Context()))
		} else { // a server that cannot write its log ends
			t.Logf("the server is started again: %v", err)
			must(t, c.primary.server.Restart(t.Context()))
		}
		c.primary.connect(t, c.primary.server.URL("postgres"))
	}, nil)
	t.Log(w.judge(t) + " mode=alone fault=full_disk")
}

func onSmallDisk(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not run in short mode: it starts servers and programs")
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt").CombinedOutput(); err != nil {
		t.Skipf("not run: this machine mounts no disk of its own: %v %s", err, out)
	}
	test := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", `mount -t tmpfs -o mode=1777,size=160m none /mnt && exec "$0" "$@"`,
		os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	test.Env = append(os.Environ(), "SMALL_DISK=/mnt")
	out, err := test.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Error(err)
	}
}

// TestClock_aDayAheadAndBackStrandsNothing moves the clock of the database under load.
func TestClock_aDayAheadAndBackStrandsNothing(t *testing.T) { //nolint:paralleltest // it sets variables
	libraries, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1") // a constant, so never malformed
	if len(libraries) == 0 || testing.Short() {
		t.Skip("not run in short mode or without libfaketime: apt-get install faketime")
	}
	clock, err := os.CreateTemp("", "clock-") //nolint:usetesting // other accounts do not enter t.TempDir
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(clock.Close(), os.Remove(clock.Name()))) })
	must(t, clock.Chmod(0o644))
	set := func(to string) {
		_, err := clock.WriteAt([]byte(to+"\n"), 0)
		must(t, err)
	}
	set("+0d")
	t.Cleanup(func() { // what the library shares in memory outlives its processes
		shared, _ := filepath.Glob("/dev/shm/*faketime_s*_*")
		for _, file := range shared {
			pid, err := strconv.Atoi(file[strings.LastIndex(file, "_")+1:])
			if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				_ = os.Remove(file)
			}
		}
	})
	c := alone(t, local.Options{Fsync: true, InMemory: true}, map[string]string{
		"LD_PRELOAD": libraries[0], "FAKETIME_TIMESTAMP_FILE": clock.Name(), "FAKETIME_NO_CACHE": "1",
		"FAKETIME_DONT_FAKE_MONOTONIC": "1",
	})
	w := newWorld(t, build(t), c)
	w.lose(t, 1, func() {
		set("+1d")
		testrun.Row(t, c.primary.admin, `select clock_timestamp() > $1`, now().Add(23*time.Hour))
		provider := harness.Sandbox(w.Sandbox.URL())
		must(t, provider.SetFaults(bounded(t), harness.Faults{ShopDown: true})) // so that messages wait
		w.load.flow(t, 40)
		testrun.Row(t, c.primary.admin, `select exists (select from inbox where status = 'pending' and due_at > now())`)
		set("+0d")
		must(t, provider.SetFaults(bounded(t), harness.Faults{}))
	}, nil)
	t.Log(w.judge(t) + " mode=alone fault=clock")
}
