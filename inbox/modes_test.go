package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

// TestProcessor_inEachModeOfPgx: messages of a broker and of a transaction arrive as they were sent,
// and each takes effect once, also one that fails first.
func TestProcessor_inEachModeOfPgx(t *testing.T) {
	t.Parallel()
	const payload = "\x00\xff\\x not text"
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			write(t, db, `create table effects (id text)`)
			config := db.Pool().Config()
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			testdb.Must(t, err)
			t.Cleanup(pool.Close)
			committer := groupcommit.New(pool, groupcommit.Options{Writes: groupcommit.NewStatements(inbox.Writes()...)})
			p := processor(t, committer, func(ctx context.Context, d *inbox.Delivery) error {
				if d.ID == "naïve 0" && d.Attempt == 1 {
					return errors.New("again")
				}
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `insert into effects (id) values ($1)`, d.ID+" "+d.Metadata["k"]+strconv.FormatBool(string(d.Payload) == payload))
					return errors.Join(err, d.Done(ctx, tx))
				})
			}, shortBackoff)
			broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
			t.Cleanup(func() { _ = broker.Close() })
			for n := range 4 {
				m := message.NewMessage(fmt.Sprint("naïve ", n/2), []byte(payload))
				m.Metadata.Set("k", "'\"é ")
				testdb.Must(t, broker.Publish("letters", m))
			}
			start(t, p)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- p.Consume(ctx, broker, "letters", nil) }()
			testdb.Must(t, send(ctx, committer, inbox.Message{ID: "own", OrderingKey: "naïve 0", Payload: []byte(payload), Metadata: map[string]string{"k": "'\"é "}}))
			await.True(t, "three messages are done", func() bool {
				return testdb.One[int](t, db, `select count(*)::int from inbox where status = 'done'`) == 3
			})
			stop()
			testdb.Must(t, await.Receive(t, "the consumer's end", ended))
			const want = `naïve 0 '"é true, naïve 1 '"é true, own '"é true`
			if got := testdb.One[string](t, db, `select string_agg(id, ', ' order by id) from effects`); got != want {
				t.Errorf("the effects are %s, want %s", got, want)
			}
		})
	}
}
