package crash

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Messages from the client.
const (
	queryMessage    = 'Q'
	parseMessage    = 'P'
	bindMessage     = 'B'
	executeMessage  = 'E'
	closeMessage    = 'C'
	syncMessage     = 'S'
	flushMessage    = 'H'
	functionMessage = 'F'
	copyDone        = 'c'
	copyFail        = 'f'
	terminate       = 'X'
)

// Messages from the server.
const (
	authentication  = 'R'
	commandComplete = 'C'
	errorResponse   = 'E'
	readyForQuery   = 'Z'
	copyIn          = 'G'
)

// What a client may say in place of its startup.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

// longestMessage is far above what a program sends; beyond it the stream is not
// what it is taken for.
const longestMessage = 64 << 20

var errNoMessage = errors.New("not a message of the PostgreSQL protocol")

// readFrame reads one message: so many bytes of type, then a length that counts
// itself, then the rest.
func readFrame(r io.Reader, kind int) ([]byte, error) {
	head := make([]byte, kind+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("read the head of a message: %w", err)
	}
	length := binary.BigEndian.Uint32(head[kind:])
	if length < 4 || length > longestMessage {
		return nil, errNoMessage
	}
	message := make([]byte, kind+int(length))
	copy(message, head)
	if _, err := io.ReadFull(r, message[len(head):]); err != nil {
		return nil, fmt.Errorf("read a message: %w", err)
	}
	return message, nil
}

// frame is a message of a type.
func frame(kind byte, body []byte) []byte {
	message := make([]byte, 0, 5+len(body))
	message = append(message, kind)
	message = binary.BigEndian.AppendUint32(message, uint32(4+len(body))) //nolint:gosec // short
	return append(message, body...)
}

// text is the zero-terminated string at the head of a message's rest, and what
// follows it.
func text(rest []byte) (string, []byte) {
	s, after, _ := bytes.Cut(rest, []byte{0})
	return string(s), after
}

// rowsOf reads the number at the end of a command's tag: SELECT 5, INSERT 0 1.
func rowsOf(complete []byte) int {
	tag, _ := text(complete[5:])
	n, err := strconv.Atoi(tag[strings.LastIndexByte(tag, ' ')+1:])
	if err != nil {
		return 0
	}
	return n
}

// ended is how a server says that it ends the session.
func ended() []byte {
	return frame(errorResponse, []byte("SFATAL\x00VFATAL\x00C"+string(Shutdown)+
		"\x00Mterminating connection due to administrator command\x00\x00"))
}

// raise is a statement that fails with an SQLSTATE.
func raise(f Fault) []byte {
	return frame(queryMessage, []byte("do $$ begin raise exception using errcode = '"+string(f)+
		"', message = 'planted between program and server'; end $$\x00"))
}

// rollback ends a transaction that failed.
func rollback() []byte { return frame(queryMessage, []byte("rollback\x00")) }
