package sandbox

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

const (
	timesMax = 1000
	// repeatDeadline bounds how long the call waits for the repetitions.
	repeatDeadline = 20 * time.Second
	repeatPoll     = 20 * time.Millisecond
)

// repeatEvents queues n deliveries of each event that was ever sent.
const repeatEvents = `
insert into event_deliveries (event_id, repeat_id)
select sent.event_id, $1
from (
  select event_id, min(position) as position
  from event_deliveries
  where attempts > 0
  group by event_id) sent,
  generate_series(1, $2::int) as time
order by time, sent.position`

// repeated is the answer of POST /duplicate-webhooks.
type repeated struct {
	Events     int64 `json:"events"`
	Deliveries int64 `json:"deliveries"`
	Sent       int64 `json:"sent"`
	Delivered  int64 `json:"delivered"`
}

const countRepeated = `
select count(distinct event_id) as events,
       count(*) as deliveries,
       count(outcome) as sent,
       count(delivered_at) as delivered
from event_deliveries
where repeat_id = $1`

// duplicateWebhooks repeats every event sent so far. It answers when each repetition
// was tried once, or after repeatDeadline with the numbers by then; the rest is sent
// later.
func (s *Sandbox) duplicateWebhooks(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Times int `json:"times"`
	}
	if err := readControl(r, &body); err != nil {
		refuseControl(w, http.StatusBadRequest, err.Error())
		return
	}
	if body.Times < 1 || body.Times > timesMax {
		refuseControl(w, http.StatusBadRequest, fmt.Sprintf("times is %d: give a number from 1 to %d", body.Times, timesMax))
		return
	}
	id := newID("repeat_")
	if _, err := s.pool.Exec(r.Context(), repeatEvents, id, body.Times); err != nil {
		s.failControl(w, fmt.Errorf("repeat events: %w", err))
		return
	}
	s.nudge()
	done, err := s.awaitRepeated(r.Context(), id)
	if err != nil {
		s.failControl(w, err)
		return
	}
	writeJSON(w, http.StatusOK, done)
}

func (s *Sandbox) awaitRepeated(ctx context.Context, id string) (repeated, error) {
	deadline := time.After(repeatDeadline)
	for last := false; ; {
		all, err := collect[repeated](ctx, s.pool, countRepeated, id)
		if err != nil {
			return repeated{}, err
		}
		done := *all[0]
		if last || done.Sent == done.Deliveries {
			return done, nil
		}
		select {
		case <-ctx.Done():
			return done, fmt.Errorf("wait for repeated events: %w", ctx.Err())
		case <-deadline:
			last = true
		case <-s.draining:
			last = true
		case <-time.After(repeatPoll):
		}
	}
}
