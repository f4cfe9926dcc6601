// Command example pays an order as a shop does: it may be killed at any moment, and is then
// started again with the same order.
//
//	go run ./example --api http://127.0.0.1:8080 --requests ./requests ORDER AMOUNT
//
// The API key is in PAYONCE_KEY. It prints the charge and, as soon as it has one, its outcome.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/payonce/payonce/client"
	"github.com/payonce/payonce/client/api"
)

func main() {
	url := flag.String("api", "http://127.0.0.1:8080", "where payonce answers")
	folder := flag.String("requests", "requests", "the folder where requests are stored before they are sent")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := pay(ctx, os.Stdout, *url, *folder, flag.Args()); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func pay(ctx context.Context, stdout io.Writer, url, folder string, arguments []string) error {
	if len(arguments) != 2 {
		return errors.New("give an order and its amount in cents")
	}
	order := arguments[0]
	amount, err := strconv.ParseInt(arguments[1], 10, 64)
	if err != nil {
		return fmt.Errorf("the amount: %w", err)
	}
	requests, err := client.OpenFolder(folder)
	if err != nil {
		return err
	}
	payonce, err := client.New(url, os.Getenv("PAYONCE_KEY"), requests)
	if err != nil {
		return err
	}
	charge, err := payonce.Charge(ctx, "pay order "+order, api.ChargeRequest{
		OrderId: order, Amount: amount, Currency: "USD", PaymentMethod: "pm_card_visa",
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, charge.Id)
	for charge.Status == api.ChargeStatusPending {
		if charge, err = payonce.GetCharge(ctx, charge.Id, 10*time.Second); err != nil {
			return err
		}
	}
	fmt.Fprintln(stdout, charge.Status)
	return nil
}
