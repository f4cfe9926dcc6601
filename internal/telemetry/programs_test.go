package telemetry_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/app/api"
	"github.com/payonce/payonce/internal/app/worker"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	programs "github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
)

// program runs until the test ends. url is where it listens.
func program(t *testing.T, run func(context.Context, *slog.Logger, func() time.Time) error) (url string) {
	t.Helper()
	log := &await.Log{}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, programs.Logger(log, "test"), time.Now) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "http://" + log.Field(t, "listening", "addr")
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Timeout: await.Stall, Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// ownServer starts a server for one test, with settings that the shared one lacks.
func ownServer(t *testing.T, settings map[string]string) (db *postgres.DB, address string) {
	t.Helper()
	address = testdb.Migrated(t, testdb.Server(t, local.Options{Fsync: true, InMemory: true, Settings: settings}), "own")
	return testdb.Connect(t, address), address
}

// TestPrograms_serveWhatTheRulesQuery checks that the api or the worker serves every metric
// that a rule or the dashboard names, with every value of a label that is named without a
// pattern.
func TestPrograms_serveWhatTheRulesQuery(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	db, address := ownServer(t, nil)
	write(t, db, `select pg_create_physical_replication_slot('standby', true)`)
	result := &pgx.Batch{}
	audit.Record(result, audit.ScopeTables)
	if err := db.Commit(t.Context(), result); err != nil {
		t.Fatal(err)
	}
	for _, variable := range os.Environ() { // a developer's own settings do not count
		if name, _, _ := strings.Cut(variable, "="); regexp.MustCompile(`^(STRIPE|IN_FLIGHT|IDEMPOTENCY|REDIS|CORS|RATE|LEASE|WORKER)`).MatchString(name) {
			t.Setenv(name, "")
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("DATABASE_URL", address)
	t.Setenv("HTTP_ADDR", "127.0.0.1:0")
	t.Setenv("STRIPE_SECRET_KEY", "sk_test_1")
	t.Setenv("STRIPE_API_BASE", "http://127.0.0.1:1") // where nothing listens

	apiURL, workerURL := program(t, api.Run), program(t, worker.Run)
	fetch(t, apiURL+"/v1/charges/ch_1") // a request that can be counted
	// The worker's subscriber has stored its offset.
	await.True(t, "the worker reads the outbox", func() bool {
		return strings.Contains(fetch(t, workerURL+"/metrics"), "payonce_outbox_unread_")
	})
	served := []string{}
	var text strings.Builder
	for _, url := range []string{apiURL, workerURL} {
		body := fetch(t, url+"/metrics")
		text.WriteString(body)
		served = append(served, matches(t, body, `(?m)^(payonce_\w+)`)...)
		if !strings.Contains(body, "\ngo_goroutines ") || !strings.Contains(body, "\nprocess_resident_memory_bytes ") {
			t.Errorf("%s serves nothing about the process", url)
		}
	}
	manual := read(t, "../../docs/operations.md")
	for url, says := range map[string]string{apiURL: "An api has at most %d connections", workerURL: "a worker has at most %d"} {
		most := 2 // for readiness, and for the doorbell
		if url == workerURL {
			most++ // which a worker listens to
		}
		for _, bound := range matches(t, fetch(t, url+"/metrics"), `(?m)^payonce_db_connections_max(\{.*\} \d+)`) {
			n, err := strconv.Atoi(bound[strings.LastIndex(bound, " ")+1:])
			if err != nil {
				t.Fatal(err)
			}
			most += n
		}
		if says = fmt.Sprintf(says, most); most <= 3 || !strings.Contains(manual, says) {
			t.Errorf("docs/operations.md does not say: %s", says)
		}
	}
	rules := read(t, observability+"rules.yml")
	for _, name := range named(t, rules+queries(t)) {
		if !slices.Contains(served, name) {
			t.Errorf("no program serves %s", name)
		}
	}
	for _, queried := range regexp.MustCompile(`(payonce_\w+)\{(\w+="\w+")`).FindAllStringSubmatch(rules, -1) {
		if !regexp.MustCompile(`(?m)^` + queried[1] + `\{.*\b` + queried[2]).MatchString(text.String()) {
			t.Errorf("no program serves %s with %s", queried[1], queried[2])
		}
	}
	for _, name := range served {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if !strings.Contains(manual, "`"+base+"`") {
			t.Errorf("docs/operations.md does not say what %s is", base)
		}
	}
}
