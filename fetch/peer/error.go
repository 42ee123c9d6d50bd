package peer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// ErrUnchanged says that a State is still the one that the ETag stands for.
var ErrUnchanged = errors.New("unchanged")

// busyError says that a node sends as much of an image as it may already.
type busyError struct {
	retryAfter time.Duration // to be asked again: 0.1 to 30 s
}

func (e *busyError) Error() string {
	return fmt.Sprintf("it sends to others already: to be asked again in %v", e.retryAfter)
}

// goneError says that a node does not have a copy to send any more.
type goneError struct {
	message string
}

func (e *goneError) Error() string { return "it has none to send: " + e.message }

// The bounds of what Retry-After may ask for.
const (
	minRetryAfter = 100 * time.Millisecond
	maxRetryAfter = 30 * time.Second
)

// responseError is the error for an answer that brings nothing. It reads what the answer
// says, within bounds, and closes it.
func responseError(resp *http.Response) error {
	defer resp.Body.Close()
	why := errorMessage(resp)
	switch resp.StatusCode {
	case http.StatusTooManyRequests:
		return &busyError{retryAfter: parseRetryAfter(resp.Header)}
	case http.StatusNotFound, http.StatusConflict:
		return &goneError{message: why}
	}
	return fmt.Errorf("it answers %d %s", resp.StatusCode, why)
}

func errorMessage(resp *http.Response) string {
	var said struct {
		Error string `json:"error"`
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err == nil && json.Unmarshal(text, &said) == nil && said.Error != "" {
		return printable(said.Error, maxMessage)
	}
	return http.StatusText(resp.StatusCode)
}

func parseRetryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseFloat(h.Get("Retry-After"), 64)
	if err != nil || !(seconds >= 0) {
		return time.Second
	}
	return time.Duration(min(max(seconds, minRetryAfter.Seconds()), maxRetryAfter.Seconds()) * float64(time.Second))
}
