package status

import "github.com/seed-26586806/backing-image-manager/reconcile/plan"

// Decode returns the observed state from the JSON text of s, for external tests.
func Decode(s Status) (plan.Observed, error) { return encodeAndDecode(s).observed() }
