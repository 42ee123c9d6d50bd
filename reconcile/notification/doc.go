// Package notification sends changes of state to the server of settings.notify. It decides which changes, from which node, in which form.
//
//	each 15 seconds, from the last round:
//	    on       := the conditions that hold, as this node sees it                  (observe)
//	    episodes := begin, continue and end with the conditions                    (episodes.update)
//	    send what is due, in the form that the server wants                        (episodes.due, messages)
//
// # Promises
//
//  1. A condition that holds for less than Hold is not sent. An episode is over when its condition has not held for Hold.
//  2. Each change is sent at least once. A node sends what concerns its own copies. The first two nodes that respond (rank) send the
//     rest. Neither waits for the other.
//  3. An event has the same id from each node and in each attempt, so that a receiver can drop repetitions: the id depends on the
//     condition and its beginning. Nodes publish the beginnings that they observe (Conditions), and adopt the earliest one. Alertmanager
//     combines alerts by their labels.
//  4. The end of an episode comes from a node that observed the episode. A node that starts again has forgotten all episodes: episodes
//     that go on get a new beginning, and it sends no end of an episode that ended meanwhile.
//  5. Each node sends the beginnings and the ends of a condition in turn, also of episodes during which the server accepted nothing.
//  6. The number of episodes is bounded by the configuration: it is a small number for each declared image. Texts are clipped, and
//     printable.
//
// # Reading order
//
// condition.go, episodes.go, message.go, notifier.go.
package notification
