package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// TargetError reports that a webhook was refused before anything was sent: its
// target is no http URL, or leads to an address that is neither public nor
// allowed, or its secret cannot sign.
type TargetError struct {
	// Reason is a sentence for the merchant, without URL, address or secret.
	Reason string
}

func (e *TargetError) Error() string { return "webhook target refused: " + e.Reason }

// DeliveryError reports that the receiver did not confirm the webhook. It may have
// accepted it.
type DeliveryError struct {
	// StatusCode of the answer, 0 if there was none.
	StatusCode int
	// RetryAfter is how long the receiver asks to wait: at most a day, 0 if it
	// does not say.
	RetryAfter time.Duration
	// Err is the cause, as a text alone: it wraps no error.
	Err error
}

func (e *DeliveryError) Error() string {
	if e.StatusCode == 0 {
		return "webhook not answered: " + e.Err.Error()
	}
	return fmt.Sprintf("webhook answered %d: %s", e.StatusCode, e.Err)
}

// Unwrap returns the cause.
func (e *DeliveryError) Unwrap() error { return e.Err }

func refusal(status int) error {
	if status/100 == 3 {
		return errors.New("redirects are not followed")
	}
	if text := http.StatusText(status); text != "" {
		return errors.New(text)
	}
	return errors.New("unknown status")
}

// retryAfter reads Retry-After, in seconds or as a date, bounded by a day.
func (s *Sender) retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(v, 10, 64); err == nil {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	until, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	return min(max(until.Sub(s.cfg.Now()), 0), maxRetryAfter)
}
