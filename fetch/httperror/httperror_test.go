package httperror

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestReadReturnsWhatWriteSent(t *testing.T) {
	sent := New(http.StatusConflict, "image %q is \"busy\" & <locked>", "alpine")
	w := httptest.NewRecorder()
	sent.Write(w)
	if w.Code != sent.Status || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("the response has status %d and type %q", w.Code, w.Header().Get("Content-Type"))
	}
	if got := Read(w.Code, w.Body.Bytes()); *got != *sent {
		t.Errorf("Read returned %+v, want %+v", got, sent)
	}
}

func TestReadOfOtherServers(t *testing.T) {
	for _, body := range []string{"", "<html>", "[]", `{"error":""}`, `{"error":7}`, `{"message":"no"}`} {
		if got := Read(502, []byte(body)); got.Error() != "502 Bad Gateway" {
			t.Errorf("body %q: the error is %q", body, got)
		}
	}
}
