package reconcile

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/upload"
)

// TestNotTaken has clients come back to what settles by itself, and to nothing else: after
// a kill, the file of an upload that was whole is verified first.
func TestNotTaken(t *testing.T) {
	for _, test := range []struct {
		planned Action
		status  int
	}{
		{Action{Kind: Verify}, http.StatusServiceUnavailable},
		{Action{Kind: Adopt}, http.StatusServiceUnavailable},
		{Action{Kind: Wait, Until: time.Unix(1, 0)}, http.StatusServiceUnavailable},
		{Action{Kind: Wait}, http.StatusConflict},
		{Action{Kind: Blocked}, http.StatusConflict},
		{Action{Kind: Sync}, http.StatusConflict},
		{Action{}, http.StatusConflict},
	} {
		test.planned.Image, test.planned.Reason = "parrot", "why"
		err := notTaken(test.planned)
		if refused, ok := errors.AsType[*upload.Refused](err); !ok || refused.Status != test.status {
			t.Errorf("%q, until %v: got %#v, want status %d", test.planned.Kind, test.planned.Until, err, test.status)
		}
	}
}
