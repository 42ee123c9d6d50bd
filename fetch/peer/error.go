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

// BusyError says that a node sends as much of an image as it may already.
type BusyError struct {
	After time.Duration // to be asked again: 0.1 to 30 s
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("it sends to others already: to be asked again in %v", e.After)
}

// GoneError says that a node does not have a copy to send any more.
type GoneError struct {
	Message string
}

func (e *GoneError) Error() string { return "it has none to send: " + e.Message }

// The bounds of what Retry-After may ask for.
const (
	leastBusy = 100 * time.Millisecond
	mostBusy  = 30 * time.Second
)

// refusal is the error for an answer that brings nothing. It reads what the answer
// says, within bounds, and closes it.
func refusal(resp *http.Response) error {
	defer resp.Body.Close()
	why := reason(resp)
	switch resp.StatusCode {
	case http.StatusTooManyRequests:
		return &BusyError{After: retryAfter(resp.Header)}
	case http.StatusNotFound, http.StatusConflict:
		return &GoneError{Message: why}
	}
	return fmt.Errorf("it answers %d %s", resp.StatusCode, why)
}

func reason(resp *http.Response) string {
	var said struct {
		Error string `json:"error"`
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err == nil && json.Unmarshal(text, &said) == nil && said.Error != "" {
		return clean(said.Error, maxMessage)
	}
	return http.StatusText(resp.StatusCode)
}

func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseFloat(h.Get("Retry-After"), 64)
	if err != nil || !(seconds >= 0) {
		return time.Second
	}
	return time.Duration(min(max(seconds, leastBusy.Seconds()), mostBusy.Seconds()) * float64(time.Second))
}
