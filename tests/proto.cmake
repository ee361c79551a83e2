# Messages, channels and exported pools. Golden frames: test_message --write tests/data/messages.
strait_test(message USES proto LABELS unit)
strait_test(channel USES proto LABELS unit)
strait_test(blob USES proto LABELS unit)
target_sources(test_message PRIVATE message_samples.c)
target_sources(test_channel PRIVATE message_samples.c)
