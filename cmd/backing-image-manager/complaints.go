package main

import (
	"bytes"
	stdlog "log"
	"log/slog"
	"strings"
	"time"

	pace "golang.org/x/time/rate"
)

// complaints logs what an HTTP server has to say of its callers, such as handshakes
// that fail. Whoever can connect can cause as many as he likes: only some are logged.
type complaints struct {
	log  *slog.Logger
	some pace.Sometimes
}

func newComplaints(log *slog.Logger) *stdlog.Logger {
	return stdlog.New(&complaints{log: log, some: pace.Sometimes{First: 20, Interval: 10 * time.Second}}, "", 0)
}

// Write takes one line. A panic is no caller's doing, and always logged.
func (c *complaints) Write(line []byte) (int, error) {
	say := func() { c.log.Warn(strings.TrimSpace(string(line))) }
	if bytes.HasPrefix(line, []byte("http: panic")) {
		say()
	} else {
		c.some.Do(say)
	}
	return len(line), nil
}
