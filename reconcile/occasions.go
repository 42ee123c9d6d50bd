package reconcile

import "time"

// roundGap is the least time between rounds that other nodes cause: a hundred of them
// may be busy at the same time.
const roundGap = 100 * time.Millisecond

// triggers are the times at which a Loop does something, and what others cause.
type triggers struct {
	tick    *time.Ticker // a look at everything
	look    *time.Timer  // a look at the config directory
	wake    *time.Timer  // the end of a wait
	news    *time.Timer  // the end of collecting what other nodes tell
	changed <-chan struct{}
	last    time.Time // end of the last round
}

func newTriggers(interval time.Duration) *triggers {
	news := time.NewTimer(0) // which begins to listen to the others
	return &triggers{tick: time.NewTicker(interval), look: time.NewTimer(0), wake: time.NewTimer(interval), news: news}
}

func (o *triggers) stop() {
	o.tick.Stop()
	o.look.Stop()
	o.wake.Stop()
	o.news.Stop()
}

// collect lets the next news wait until a round is due.
func (o *triggers) collect() {
	o.changed = nil
	o.news.Reset(time.Until(o.last.Add(roundGap)))
}
