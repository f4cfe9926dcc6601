package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/service"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestRoute: a request goes to the receiver of charges, a webhook event to each subscriber, and
// every other event to none. A type that this program does not know is a newer program's, or
// foreign.
func TestRoute(t *testing.T) {
	t.Parallel()
	for _, r := range (&fulfillment.Fulfillment{}).Receivers() {
		for _, kind := range domain.EventTypes() {
			want := kind.Request && r.Topic == domain.Topic || kind.Webhook != "" && slices.Contains(domain.Subscribers(), r.Name)
			if takes := r.Takes(kind.Name); takes != want {
				t.Errorf("%s takes %s: %t", r.Name, kind.Name, takes)
			}
		}
		for _, name := range []string{"payment_intent.succeeded", "refund.created", "charge.dispute.created", "charge.refunded", "charge.refund.updated"} {
			if takes := r.Takes(fulfillment.ProviderEvent + name); takes != (r.Name == fulfillment.ChargeReceiver) {
				t.Errorf("%s takes the provider's %s: %t", r.Name, name, takes)
			}
		}
		for _, name := range []string{"", "charge.reviewed.v1", "adyen.refund", "stripe.payout.paid", "stripe."} {
			if r.Takes(name) {
				t.Errorf("%s takes %q", r.Name, name)
			}
		}
	}
}

// idle is a worker whose database is not there.
func idle() *service.Service {
	return &service.Service{DB: &postgres.DB{}, Bell: service.NewBell(nil)}
}

// A topic has one reader. What follows an event of a charge passes no topic.
func TestProcessors_onlyNotificationsWaitBehindADeadLetter(t *testing.T) {
	t.Parallel()
	type of struct {
		Topic       string
		DeadLetters inbox.DeadLetters
	}
	want := map[string]of{
		fulfillment.ChargeReceiver: {domain.Topic, inbox.Pass}, fulfillment.NotificationReceiver: {"", inbox.Block},
		fulfillment.ResendReceiver: {"", inbox.Pass},
	}
	got := map[string]of{}
	receivers, err := processors(idle(), fulfillment.Services{}, nil, settings{})
	testdb.Must(t, err)
	for _, r := range receivers {
		got[r.Name] = of{r.Topic, r.processor.Policy.DeadLetters}
	}
	testrun.Same(t, "receivers", want, got)
}

// A restarted worker has the same host, and in a container the same process id. Its old messages are
// those of another holder.
func TestProcessors_haveAnotherHolderAfterEachStart(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 2 {
		receivers, err := processors(idle(), fulfillment.Services{}, nil, settings{})
		testdb.Must(t, err)
		for _, r := range receivers {
			holder := r.Name + " " + r.processor.Holder
			if seen[holder] || !strings.HasPrefix(r.processor.Holder, program.Instance()+"/") {
				t.Errorf("%s has the holder %s, after %v", r.Name, r.processor.Holder, seen)
			}
			seen[holder] = true
		}
	}
}
