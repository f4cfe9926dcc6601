package main

import (
	"context"
	"slices"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/fulfillment/operate"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/service"
)

// receiver is a receiver of messages and its processor, which has claims of its own.
type receiver struct {
	fulfillment.Receiver

	bell      <-chan struct{} // rings for messages of its topic
	processor *inbox.Processor
}

func processors(w *service.Service, services fulfillment.Services, m *metrics, s settings) ([]receiver, error) {
	f := fulfillment.New(w.DB, services, w.Log)
	f.OnStep = m.observeSteps(w.Traces)
	var receivers []receiver
	for _, r := range f.Receivers() {
		o := inbox.Options{
			DB:          w.DB,
			Receiver:    r.Name,
			Handle:      r.Handle,
			Concurrency: s.WorkerConcurrency,
			Policy: inbox.Policy{
				Lease: s.Lease, MaxAttempts: s.MaxAttempts, GiveUpAfter: s.GiveUpAfter,
				BackoffBase: s.BackoffBase, BackoffCap: s.BackoffCap, DeadLetters: r.DeadLetters,
			},
			Wake:  w.Bell.Bell(r.Name),
			Drain: program.DrainTime,
			Log:   w.Log,
		}
		m.observe(&o, w.Traces)
		p, err := inbox.New(o)
		if err != nil {
			return nil, err
		}
		p.Pause(true) // until followPauses has read what is paused
		receivers = append(receivers, receiver{r, w.Bell.Bell(r.Topic), p})
	}
	return receivers, nil
}

// followPauses pauses the receivers and merchants that operators have paused, and resumes the others.
func followPauses(ctx context.Context, db *postgres.DB, receivers []receiver) error {
	all, err := operate.ListPauses(ctx, db)
	if err != nil {
		return err
	}
	var paused, merchants []string
	for _, pause := range all {
		if pause.What == operate.PausedMerchant {
			merchants = append(merchants, pause.Merchant)
		} else {
			paused = append(paused, pause.What)
		}
	}
	for _, r := range receivers {
		r.processor.Pause(slices.Contains(paused, r.Name), merchants...)
	}
	return nil
}
