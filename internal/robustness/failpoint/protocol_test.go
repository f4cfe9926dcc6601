package failpoint_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

func TestNotification_isForwarded(t *testing.T) {
	t.Parallel()
	s := newScene(t, &aim{})
	conn := s.through()
	s.exec(conn, `listen news`)
	s.exec(s.direct, `notify news, 'good'`)
	news, err := conn.WaitForNotification(s.ctx)
	if err != nil || news.Payload != "good" {
		t.Errorf("heard %+v, %v", news, err)
	}
}

// TestLink loses every packet, of open connections and of new ones, until it leads to a server again.
func TestLink(t *testing.T) {
	t.Parallel()
	s := newScene(t, &aim{})
	var err error
	s.proxy, err = failpoint.NewProxy(s.ctx, s.address, nil)
	testdb.Must(t, err)
	t.Cleanup(s.proxy.Close)
	conn := s.through()
	s.exec(conn, insert, 1)
	s.proxy.Lose()
	for name, do := range map[string]func(context.Context) error{
		"an open connection": func(ctx context.Context) error { _, err := conn.Exec(ctx, insert, 2); return err },
		"a new connection":   func(ctx context.Context) error { _, err := pgx.Connect(ctx, s.proxy.URL()); return err },
	} {
		ctx, cancel := context.WithTimeout(s.ctx, 100*time.Millisecond)
		if err := do(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s of a lost link ends with %v", name, err)
		}
		cancel()
	}
	testdb.Must(t, s.proxy.Lead(s.address))
	s.exec(s.through(), insert, 3)
	s.wantStored(1, 3)
}
