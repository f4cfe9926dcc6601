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
func (s *Sandbox) duplicateWebhooks(r *http.Request) (answer, error) {
	var body struct {
		Times int `json:"times"`
	}
	if err := readControl(r, &body); err != nil {
		return answer{}, err
	}
	if body.Times < 1 || body.Times > timesMax {
		return answer{}, refused(http.StatusBadRequest, "times is %d: give a number from 1 to %d", body.Times, timesMax)
	}
	id := newID("repeat_")
	if _, err := s.pool.Exec(r.Context(), repeatEvents, id, body.Times); err != nil {
		return answer{}, fmt.Errorf("repeat events: %w", err)
	}
	s.nudge()
	return s.awaitRepeated(r.Context(), id)
}

func (s *Sandbox) awaitRepeated(ctx context.Context, id string) (answer, error) {
	deadline := time.After(repeatDeadline)
	for last := false; ; {
		all, err := collect[repeated](ctx, s.pool, countRepeated, id)
		if err != nil {
			return answer{}, err
		}
		if done := all[0]; last || done.Sent == done.Deliveries {
			return object(http.StatusOK, done), nil
		}
		select {
		case <-ctx.Done():
			return answer{}, fmt.Errorf("wait for repeated events: %w", ctx.Err())
		case <-deadline:
			last = true
		case <-s.draining:
			last = true
		case <-time.After(repeatPoll):
		}
	}
}
