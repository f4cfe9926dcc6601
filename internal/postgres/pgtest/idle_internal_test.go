package pgtest

import "testing"

// A goroutine of a connection that is kept is no leak of the tests.
func TestMainClosesWhatIsKept(t *testing.T) { //nolint:paralleltest // nobody else may take the connection
	if err := keepOne(t); err != nil {
		t.Fatal(err)
	}
	conn := <-idle
	idle <- conn
	closeIdle()
	if !conn.IsClosed() || len(idle) != 0 {
		t.Errorf("closed: %v, %d are kept", conn.IsClosed(), len(idle))
	}
}

// keepOne leaves a connection for the next test.
func keepOne(t *testing.T) error {
	t.Helper()
	s, err := shared()
	if err != nil {
		return err
	}
	if s.idle == nil {
		t.Skip("not run: the server of TEST_DATABASE_URL is not ours, and no connection to it is kept")
	}
	return s.exec(t.Context(), "select 1")
}
