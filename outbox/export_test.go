package outbox

import (
	"database/sql"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// NewImpatientSubscriber is NewSubscriber with another clock, which retries a read
// that failed at once.
func NewImpatientSubscriber(db *sql.DB, group string, log *slog.Logger, now func() time.Time) message.Subscriber {
	return newSubscriber(db, group, Options{Log: log}, time.Microsecond, now)
}
