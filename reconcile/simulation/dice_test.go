package simulation

import "math/rand/v2"

// dice make the random decisions of a simulation.
type dice struct{ *rand.Rand }

func (r dice) one(in int) bool { return r.IntN(in) == 0 }

func pick1[T any](r dice, of ...T) T { return of[r.IntN(len(of))] }
